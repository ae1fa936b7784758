"""The clients for threads have the names, options, types and docstrings of the async ones."""

import inspect
from typing import Any

import pytest

import nsq_ha
from nsq_ha import admin, sync
from nsq_ha.sync.producer import MOST_BYTES

CLIENTS = [
    (sync.Producer, nsq_ha.Producer),
    (sync.Consumer, nsq_ha.Consumer),
    (sync.Worker, nsq_ha.Worker),
    (sync.AdminClient, admin.AdminClient),
]
NAMES = [one.__name__ for one, _ in CLIENTS]
OTHER_NAMES = {"aclose": "stop"}
OURS = {"start", "stop", "publish_nowait", "flush"}


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


def types(call: Any) -> str:  # noqa: ANN401
    """Return the signature without the types of ``producer`` and of a consumer, which are clients of the same kind."""
    signature = inspect.signature(call, eval_str=True)
    parameters = [
        each.replace(annotation=each.empty) if each.name == "producer" else each
        for each in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=parameters)).replace("typing.", "")
    return text.replace("nsq_ha.sync.consumer.Consumer", "nsq_ha.consumer.consumer.Consumer")


@pytest.mark.parametrize(("threads", "original"), CLIENTS, ids=NAMES)
def test_every_public_name_is_there(threads: type, original: type) -> None:
    expected = {OTHER_NAMES.get(name, name) for name in public(original)}
    assert public(threads).keys() - expected <= OURS | {"config", "topic", "channel"}
    assert expected <= public(threads).keys()


@pytest.mark.parametrize(("threads", "original"), CLIENTS, ids=NAMES)
def test_signatures_and_docstrings_are_those_of_the_async_ones(threads: type, original: type) -> None:
    compared = 0
    for name, value in public(original).items():
        if not inspect.isfunction(value) or name in OTHER_NAMES:
            continue
        ours = getattr(threads, name)
        expected = types(value).replace("AsyncIterator", "Iterator")
        returned = "collections.abc.Coroutine[Any, Any, nsq_ha.message.Message]"
        assert types(ours) == expected.replace(returned, "nsq_ha.message.Message"), name
        assert inspect.getdoc(ours) == inspect.getdoc(value)
        assert (ours.__name__, ours.__module__) == (name, "nsq_ha.sync")
        assert not inspect.iscoroutinefunction(ours)
        compared += 1
    assert compared >= 2


@pytest.mark.parametrize(("threads", "original"), CLIENTS, ids=NAMES)
def test_they_are_made_with_the_same_options(threads: type, original: type) -> None:
    def parameters(kind: type) -> dict[str, inspect.Parameter]:
        found = dict(inspect.signature(kind).parameters)
        if "producer" in found:  # the one option whose value is another client
            found["producer"] = found["producer"].replace(annotation="Producer")
        return found

    ours = parameters(threads)
    if threads is sync.Producer:  # only there the library holds bodies that no caller waits for
        assert ours.pop("max_pending_bytes").default == MOST_BYTES
    assert ours == parameters(original)


@pytest.mark.parametrize(("threads", "original"), CLIENTS, ids=NAMES)
def test_they_are_made_from_the_same_environment(threads: Any, original: Any) -> None:  # noqa: ANN401
    ours, theirs = (dict(inspect.signature(kind.from_env).parameters) for kind in (threads, original))
    for found in (ours, theirs):
        found.pop("producer", None)
        found.pop("max_pending_bytes", None)
    assert ours == theirs


def test_publish_nowait_takes_what_publish_takes() -> None:
    ours, theirs = types(sync.Producer.publish_nowait), types(nsq_ha.Producer.publish)
    assert ours.partition(" -> ")[0] == theirs.partition(" -> ")[0]
    assert sync.Producer.publish_nowait.__name__ == "publish_nowait"
    assert "future" in (sync.Producer.publish_nowait.__doc__ or "")


def test_what_is_public_is_described() -> None:
    assert sync.__all__ == ["AdminClient", "Consumer", "Producer", "Worker"]
    for name in sync.__all__:
        for member, value in public(getattr(sync, name)).items():
            assert inspect.getdoc(value), f"{name}.{member}"
