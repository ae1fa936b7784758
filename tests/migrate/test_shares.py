"""Shares from numbers, tables, functions and files."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsq_ha import ConfigError, PublishError
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from nsq_ha.migrate import MigratingProducer
    from tests.migrate.conftest import Scene

OFTEN = 0.01
"""Seconds between two looks."""


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (101, "share must be a number of percent"),
        (True, "share must be a number of percent"),
        (None, "share must be a number of percent"),
        ("50", "name a file that ends in .toml or .json"),
        ({"a b": 1}, "topic"),
        ({"a": "1"}, "the share of 'a' must be a number of percent"),
        ({1: 1}, "topic"),
    ],
)
async def test_wrong_shares_are_refused(scene: Scene, share: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match=message):
        scene.producer(share)


@pytest.mark.parametrize("interval", [0, -1, "1", True])
async def test_wrong_intervals_are_refused(scene: Scene, interval: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match="refresh_interval must be a number of seconds"):
        scene.producer(0, interval)


async def test_a_topic_that_no_table_names_stays(scene: Scene) -> None:
    assert scene.producer({"a": 10}).share_of("b") == 0


async def test_set_share_changes_one_topic_or_the_others(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nsq_ha.migrate")
    producer = scene.producer({"a": 10})
    producer.set_share(20)
    producer.set_share(30, "b")
    assert [producer.share_of(topic) for topic in "abc"] == [10, 30, 20]
    assert [record.getMessage() for record in caplog.records] == [
        "*: share of the current cluster: 20 %, was 0 %",
        "b: share of the current cluster: 30 %, was 20 %",
    ]


# -- functions


async def test_a_function_is_called_now_and_then(scene: Scene) -> None:
    calls: list[str] = []

    def share(topic: str) -> float:
        calls.append(topic)
        return 100 if topic == "a" else 0

    async with scene.producer(share, 3600) as producer:
        for topic in "abab":
            await producer.publish(topic, topic.encode())
        with pytest.raises(ConfigError, match="a function gives the shares"):
            producer.set_share(1)
    assert calls == ["a", "b"]
    assert scene.places() == [(b"a", "current"), (b"b", "previous")] * 2


async def test_a_changed_result_is_seen(scene: Scene) -> None:
    shares = {"t": 0.0}
    async with scene.producer(shares.__getitem__, OFTEN) as producer:
        assert producer.share_of("t") == 0
        shares["t"] = 100
        await eventually(lambda: producer.share_of("t") == 100)


async def test_a_function_that_fails_changes_nothing_and_is_reported_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    results: list[Any] = [100]
    calls = 0

    def share(_: str) -> Any:  # noqa: ANN401
        nonlocal calls
        calls += 1
        return results[0] if results else 1 / 0

    async def called_again(producer: MigratingProducer) -> None:
        before = calls
        await eventually(lambda: (producer.share_of("t"), calls >= before + 2)[1])

    async with scene.producer(share, OFTEN) as producer:
        assert producer.share_of("t") == 100
        results.clear()
        await called_again(producer)
        results.append("much")
        await called_again(producer)
        assert producer.share_of("t") == 100
    [record] = caplog.records
    assert record.getMessage().startswith("t: the share stays at 100 %, since share= failed: ")


async def test_a_function_that_never_worked_is_an_error(scene: Scene) -> None:
    async with scene.producer(lambda topic: 100 if topic == "t" else "?") as producer:  # type: ignore[arg-type, return-value]
        await producer.publish("t", b"1")
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"share= gave no share for topic 'u': .* not '\?'"):
                await producer.publish("u", b"1", key="k")
    assert len(scene.sent) == 1


async def test_a_coroutine_function_is_refused(scene: Scene) -> None:
    async def share(_: str) -> float:
        return 0

    with pytest.raises(ConfigError, match="must be a plain function"):
        scene.producer(share)  # type: ignore[arg-type]


# -- files


@pytest.mark.parametrize(
    ("name", "text"), [("s.toml", '"*" = 10\norders = 25.5\n'), ("s.json", '{"*": 10, "orders": 25.5}')]
)
async def test_a_file_has_shares(scene: Scene, tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    async with scene.producer(str(file)) as producer:
        assert (producer.share_of("orders"), producer.share_of("other")) == (25.5, 10)
        with pytest.raises(ConfigError, match="change the file"):
            producer.set_share(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: .*No such file"),
        ("{", "cannot be read"),
        ("[1]", "must have a table"),
        ('{"t": 101}', "the share of 't' must be a number of percent"),
        ('{"a b": 1}', "s.json: topic"),
        ("\udcff", "cannot be read"),
    ],
)
async def test_entering_refuses_a_file_that_cannot_be_used(
    scene: Scene, tmp_path: Path, text: str | None, message: str
) -> None:
    file = tmp_path / "s.json"
    if text is not None:
        file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=message):
        await scene.producer(file).__aenter__()


async def test_a_changed_file_is_read_again(scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nsq_ha.migrate")
    file = tmp_path / "s.json"
    file.write_text(json.dumps({"t": 0}))
    async with scene.producer(file, OFTEN) as producer:
        file.write_text(json.dumps({"t": 100}))
        await eventually(lambda: producer.share_of("t") == 100)
        replaced = tmp_path / "new"
        replaced.write_text(json.dumps({"t": 50}))
        replaced.replace(file)
        await eventually(lambda: producer.share_of("t") == 50)
    assert [record.getMessage() for record in caplog.records] == [
        "t: share of the current cluster: 100 %, was 0 %",
        "t: share of the current cluster: 50 %, was 100 %",
    ]


async def test_a_broken_file_changes_nothing_and_is_reported_once(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps({"t": 10}))

    def warnings() -> int:
        return len(caplog.records)

    async with scene.producer(file, OFTEN) as producer:
        file.write_text("{")
        await eventually(lambda: warnings() == 1)
        assert producer.share_of("t") == 10
        file.unlink()
        await eventually(lambda: warnings() == 2)
        assert producer.share_of("t") == 10
        file.write_text(json.dumps({"t": 20}))
        await eventually(lambda: producer.share_of("t") == 20)
    assert warnings() == 2
    assert all(record.getMessage().startswith("the shares stay as they were: ") for record in caplog.records)


async def test_what_a_producer_raises_comes_through(scene: Scene) -> None:
    async with scene.producer(100) as producer:
        scene.hold()
        task = asyncio.ensure_future(producer.publish("t", b"1"))
        await eventually(lambda: scene.sent)
        error = PublishError("x", topic="t", partition=0, attempts=1, maybe_stored=True)
        scene.sent[0].answer.set_exception(error)
        with pytest.raises(PublishError) as caught:
            await task
        assert caught.value is error
