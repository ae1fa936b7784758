"""Spark: ``spark.read.format("nsq")``, exactly once by queue offsets.

Needs the extra ``nsq_ha[spark]`` and Java 17 or newer. Importing this package
imports neither PySpark nor Arrow; its modules do, each when it needs them.
"""

import logging as _logging
from typing import Final as _Final

logger: _Final = _logging.getLogger(__name__)
