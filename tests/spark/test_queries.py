"""The tests' way to run a query: again if Spark gave it too little time, and for no other reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest
from pyspark.errors import StreamingQueryException

from tests.support.spark_queries import STARTS, TOO_SLOW, run_to_end

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class Query:
    """One that ends well, or with an error."""

    def __init__(self, error: str | None, rows: int) -> None:
        self.error = error
        self.recentProgress = [{"numInputRows": rows}, {"numInputRows": 0}]

    def awaitTermination(self, timeout: int) -> bool:  # noqa: N802 - Spark's name
        if self.error is not None:
            raise StreamingQueryException(self.error)
        return timeout > 0


def starts(*errors: str | None) -> tuple[Callable[[], StreamingQuery], list[Query]]:
    made: list[Query] = []

    def start() -> StreamingQuery:
        made.append(Query(errors[len(made)], len(made) + 1))
        return cast("StreamingQuery", made[-1])

    return start, made


def test_a_query_that_spark_gave_too_little_time_is_started_again() -> None:
    start, made = starts(f"terminated with exception: {TOO_SLOW}.", None)
    assert run_to_end(start) == [{"numInputRows": 1}, {"numInputRows": 2}]
    assert len(made) == 2


@pytest.mark.parametrize(("error", "count"), [("DataLossError: t-0", 1), (TOO_SLOW, STARTS)])
def test_a_query_that_fails_otherwise_or_each_time_is_not(error: str, count: int) -> None:
    start, made = starts(*[error] * count)
    with pytest.raises(StreamingQueryException, match=error):
        run_to_end(start)
    assert len(made) == count
