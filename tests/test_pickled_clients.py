"""A client belongs to its process: pickling one says what to do instead."""

import copy
import pickle
from collections.abc import Callable

import pytest

import nsq_ha
from nsq_ha import sync
from nsq_ha.admin import AdminClient

LOOKUPD = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "make",
    [
        lambda: nsq_ha.Producer(lookupd=LOOKUPD),
        lambda: nsq_ha.Consumer("orders", "billing", lookupd=LOOKUPD),
        lambda: nsq_ha.LookupClient(LOOKUPD),
        lambda: sync.Producer(lookupd=LOOKUPD),
        lambda: sync.Consumer("orders", "billing", lookupd=LOOKUPD),
        lambda: sync.AdminClient(LOOKUPD),
        lambda: AdminClient(LOOKUPD),
        lambda: nsq_ha.Worker(lookupd=LOOKUPD),
        lambda: sync.Worker(lookupd=LOOKUPD),
    ],
)
@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_client_is_created_where_it_is_used(
    make: Callable[[], object], duplicate: Callable[[object], object]
) -> None:
    """The errors named private parts, such as "Can't pickle local object 'WeakSet.__init__.<locals>._remove'"."""
    client = make()
    name = type(client).__name__
    with pytest.raises(TypeError, match=f"^this {name} cannot be pickled or copied: create it in the other process$"):
        duplicate(client)
