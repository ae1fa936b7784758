"""How hypothesis looks for examples, and what no test leaves behind."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from nsq_ha import redaction


@pytest.fixture(autouse=True)
def no_secrets() -> Iterator[None]:
    """Forget the secrets of a test: another one's error messages may hold these words."""
    yield
    redaction.forget()


# What an example may take is not asserted: that is the machine's. `make test` tries the same examples on the same tree,
# so that its result is the tree's alone; `make test-full` looks for new ones.
settings.register_profile("nsq_ha", deadline=None, derandomize="NSQ_HA_FULL" not in os.environ)
settings.load_profile("nsq_ha")
