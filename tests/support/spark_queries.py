"""Streaming queries of tests, on a machine that may be too busy for a limit of Spark's own."""

from collections.abc import Callable
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

LIMIT: Final = 300.0
"""Seconds for a query; generous, since a busy machine takes long for each micro-batch."""
TOO_SLOW: Final = "Python worker failed to connect back"
"""Spark gives a Python process 10 s to start, without a setting; on a very busy machine that is too short."""
PATIENT: Final = {"spark.sql.shuffle.partitions": "2", "spark.python.authenticate.socketTimeout": "300s"}
"""Settings of a session: few tasks, and time for Python to take what Spark has for it, which is 15 s by default."""
STARTS: Final = 5
"""Maximum number of starts of a query, or of a program, that ends for that reason."""


def run_to_end(start: Callable[[], StreamingQuery], limit: float = LIMIT) -> list[dict[str, Any]]:
    """Start a query and wait for its end; start it again if Spark did not wait for its Python process.

    Args:
        start: Starts it, from its checkpoint if it has one.
        limit: Seconds for each start.

    Returns:
        The progress of each micro-batch that had rows.
    """
    progress: list[dict[str, Any]] = []
    for left in reversed(range(STARTS)):
        query = start()
        try:
            assert query.awaitTermination(int(limit)), "the query does not come to its end"
            return progress
        except StreamingQueryException as error:
            if TOO_SLOW not in str(error) or not left:
                raise
        finally:
            progress += [dict(each) for each in query.recentProgress if each["numInputRows"]]
    raise AssertionError("unreachable")
