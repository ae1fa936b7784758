"""How hypothesis looks for examples."""

from __future__ import annotations

import os

from hypothesis import settings

# What an example may take is not asserted: that is the machine's. `make test` tries the same examples on the same tree,
# so that its result is the tree's alone; `make test-full` looks for new ones.
settings.register_profile("nsq_ha", deadline=None, derandomize="NSQ_HA_FULL" not in os.environ)
settings.load_profile("nsq_ha")
