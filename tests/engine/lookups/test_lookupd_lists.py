"""What nsqlookupds say of one another: lists with gaps, and hostile ones."""

from __future__ import annotations

import json

import pytest

from nsq_ha.engine.answers import LookupdList, decode_lookupd_list
from nsq_ha.engine.body import unwrap
from nsq_ha.errors import RemoteProtocolError


def entry(host: object = "10.0.0.1", port: object = "4161") -> dict[str, object]:
    return {"NodeIP": host, "HttpPort": port}


def listed(content: object, status: int = 200, scheme: str = "http") -> LookupdList:
    return decode_lookupd_list(unwrap(status, json.dumps(content).encode()), scheme)


def test_a_server_without_lists_is_used_as_it_is() -> None:
    assert not listed({"message": "NOT_FOUND"}, 404).supported
    assert listed(None) == LookupdList(leader=None, nodes=(), supported=False)


@pytest.mark.parametrize(
    "wrong",
    [entry(""), entry(None), entry("a b"), entry(port="x"), entry(port="0"), entry(port="70000"), entry(port=None), 7],
)
def test_a_wrong_nsqlookupd_is_left_out(wrong: object) -> None:
    found = listed({"lookupdnodes": [wrong, entry("10.0.0.2")], "lookupdleader": wrong})
    assert found == LookupdList(leader=None, nodes=("http://10.0.0.2:4161",))


def test_a_flood_of_nsqlookupds_is_cut() -> None:
    found = listed({"lookupdnodes": [entry(f"10.1.{number // 250}.{number % 250}") for number in range(1000)]})
    assert len(found.nodes) == 64


@pytest.mark.parametrize(("status", "content"), [(500, {"message": "no"}), (200, []), (200, {"lookupdnodes": 7})])
def test_a_list_of_another_shape_is_no_answer(status: int, content: object) -> None:
    with pytest.raises(RemoteProtocolError):
        listed(content, status)
