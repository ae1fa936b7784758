"""Whether a test runs in full, as in ``make test-full``, or in its short form."""

import os
from typing import Final

FULL: Final = "NSQ_HA_FULL" in os.environ
"""Set by ``make test-full``."""
