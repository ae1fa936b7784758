"""Handing out messages, part by part: iterators, workers, threads, and what happens to what nobody answers."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nsq_ha import ConsumerConfig
from nsq_ha.consumer.delivery import CLOSED, Returned
from nsq_ha.consumer.giving_up import GiveUpPublisher
from nsq_ha.consumer.handlers import Handling, check_concurrency, check_handler
from nsq_ha.consumer.inbox import ConsumerInbox, Iterations, Messages
from nsq_ha.consumer.queue import MessageQueue
from nsq_ha.errors import ClosedError, ConfigError, ConnectionLostError
from nsq_ha.message import Message
from nsq_ha.threads import HandlerThreads, is_async
from tests.consumer.parts import Source
from tests.support.nsqd import message_id
from tests.support.waiting import block, dawdle, eventually, turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def messages(count: int, source: Source | None = None, *, first: int = 1, attempts: int = 1) -> list[Message]:
    used = source or Source()
    return [Message(message_id(first + n, 3), b"%d" % (first + n), attempts, 7, used) for n in range(count)]


# ---------------------------------------------------------------- iterators


class Owner:
    """Checks messages as a test says."""

    def __init__(self) -> None:
        self.refused: set[bytes] = set()
        self.checked: list[bytes] = []
        self.iterable_checks = 0
        self.arrivals: list[asyncio.Future[None]] = []
        self.is_closed = False
        self.changed = asyncio.Event()
        self.ledger = SimpleNamespace(keeping=set())

    def next_arrival(self) -> asyncio.Future[None]:
        if self.is_closed:
            raise StopAsyncIteration
        self.arrivals.append(asyncio.get_running_loop().create_future())
        return self.arrivals[-1]

    def check_iterable(self) -> None:
        self.iterable_checks += 1

    def turn(self, _: Message) -> None: ...

    async def may_be_handled(self, message: Message) -> bool:
        self.checked.append(message.body)
        return message.body not in self.refused


def queue_of(messages: deque[Message], fine_below: int = 2) -> MessageQueue:
    queue = MessageQueue()
    queue.messages = queue.unseen = messages
    queue.fine_below = fine_below
    return queue


def iterator_over(
    messages: deque[Message], owner: Owner, check_loop: Callable[[], None] = lambda: None, *, is_of_task: bool = False
) -> Messages:
    inbox: Any = owner
    return Messages(queue_of(messages), inbox, check_loop, is_of_task=is_of_task)


async def test_only_messages_with_many_attempts_are_checked() -> None:
    owner, queue = Owner(), deque(messages(2) + messages(3, first=3, attempts=2))
    owner.refused = {b"3"}
    found = iterator_over(queue, owner)
    assert [(await anext(found)).body for _ in range(4)] == [b"1", b"2", b"4", b"5"]
    assert owner.checked == [b"3", b"4", b"5"]
    queue.extend(messages(1, first=6) + messages(1, first=7, attempts=2))
    taken = found.take_now()
    assert taken is not None
    assert taken.body == b"6"
    assert found.take_now() is None
    queue.clear()
    assert found.take_now() is None
    assert aiter(found) is found


async def test_an_iterator_waits_for_arrivals() -> None:
    owner: Owner = Owner()
    queue: deque[Message] = deque()
    found = iterator_over(queue, owner)
    waiting = asyncio.create_task(anext(found))
    await turn(2)
    owner.arrivals[0].set_result(None)
    await turn(2)
    assert len(owner.arrivals) == 2
    assert owner.iterable_checks == 0
    queue.extend(messages(1))
    owner.arrivals[1].set_result(None)
    assert (await waiting).body == b"1"


async def test_another_loop_is_named_when_a_wait_fails() -> None:
    owner = Owner()

    def refuse() -> None:
        raise ConfigError("another loop")

    class Broken(asyncio.Future[None]):
        def __await__(self) -> Any:  # noqa: ANN401 - a generator
            raise RuntimeError("attached to a different loop")

    owner.next_arrival = Broken  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="another loop"):
        await anext(iterator_over(deque(), owner, refuse))
    with pytest.raises(RuntimeError, match="different loop"):
        await anext(iterator_over(deque(), owner))


async def test_a_task_is_known_by_what_it_has_not_answered() -> None:
    owner, queue = Owner(), deque(messages(5))
    found = iterator_over(queue, owner, is_of_task=True)
    taken = [await anext(found) for _ in range(4)]
    taken[1].finish()
    assert found.unanswered() == [taken[0], taken[2], taken[3]]
    source: Any = taken[0].source
    source.is_alive = False
    assert found.unanswered() == []
    source.is_alive = True
    found.forget()
    assert found.unanswered() == []
    other = iterator_over(deque(messages(3)), owner)
    held = [await anext(other) for _ in range(3)]
    assert other.unanswered() == held[2:]  # handlers keep their own


async def test_few_answered_messages_are_kept() -> None:
    queue = deque(messages(200))
    found = iterator_over(queue, Owner(), is_of_task=True)
    first = await anext(found)
    for _ in range(100):
        message = await anext(found)
        await anext(found) if queue and len(queue) == 50 else None
        message.answered = True
        assert len(found._kept) <= 36
    assert first in found.unanswered()


async def test_a_task_that_waits_drops_what_is_answered() -> None:
    owner, queue = Owner(), deque(messages(3))
    found = iterator_over(queue, owner, is_of_task=True)
    taken = [await anext(found) for _ in range(3)]
    taken[0].finish()
    waiting = asyncio.create_task(anext(found))
    await turn(2)
    assert list(found._kept) == taken[1:]
    assert owner.iterable_checks == 1
    waiting.cancel()
    await asyncio.wait({waiting})


async def test_each_task_has_one_iterator() -> None:
    owner: Any = Owner()
    iterations = Iterations(queue_of(deque(messages(6)), 5), owner, lambda: None)
    mine = iterations.of_task()
    assert iterations.of_task() is mine
    assert iterations.new() is not mine
    may_end, seen = asyncio.Event(), []

    async def other() -> None:
        found = iterations.of_task()
        seen.append(await anext(found))
        await may_end.wait()

    task = asyncio.create_task(other())
    await turn(2)
    held = await anext(mine)
    me = asyncio.current_task()
    assert len(iterations.held()) == 2
    assert iterations.take(None) == []
    held.finish()
    assert iterations.held()
    may_end.set()
    await task
    assert owner.changed.is_set()
    assert not iterations.held()
    assert iterations.take(None) == seen
    assert iterations.take(None) == []
    again = await anext(mine)
    assert iterations.take(me) == [again]
    last = await anext(mine)
    assert iterations.held()
    iterations.forget()
    assert not iterations.held()
    assert not last.answered


# ---------------------------------------------------------------- what a handler may be


class Callable1:
    """An object that can be called."""

    def __call__(self, message: Message) -> None: ...


class Generates:
    def __call__(self, message: Message) -> Iterator[Message]:
        yield message


def generates(message: Message) -> Iterator[Message]:
    yield message


def takes_two(message: Message, other: object) -> None: ...


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (5, "must be a function of a message, not int"),
        (generates, "must be a function of a message, not a generator: generates would never run"),
        (Generates(), "must be a function of a message, not a generator: Generates would never run"),
        (
            takes_two,
            (
                "must take one argument, the message; takes_two(message: 'Message', other: 'object') -> 'None' does"
                " not: missing a required argument: 'other'"
            ),
        ),
    ],
)
def test_what_is_no_handler_is_named(handler: object, text: str) -> None:
    for option in ("handler", "on_give_up"):
        with pytest.raises(ConfigError) as caught:
            check_handler(handler, option)
        assert str(caught.value) == f"{option} {text}"
    with pytest.raises(ConfigError, match=r"^handler "):
        check_handler(handler)
    for good in (Callable1(), print, lambda message: message):
        check_handler(good)


@pytest.mark.parametrize("concurrency", [0, 10_001, True, 1.5, "1"])
def test_what_is_no_concurrency_is_named(concurrency: object) -> None:
    with pytest.raises(ConfigError) as caught:
        check_concurrency(concurrency)
    assert str(caught.value) == f"concurrency must be an int of 1..10000, not {concurrency!r}"
    check_concurrency(1)
    check_concurrency(10_000)


# ---------------------------------------------------------------- workers


class Desk:
    """Takes handling times."""

    def __init__(self) -> None:
        self.handled_times: list[tuple[int, float]] = []
        self.long: list[tuple[bytes, float, str]] = []
        self.taken_back: list[tuple[bytes, str]] = []
        self.flow = SimpleNamespace(hold=lambda *, is_held: None)

    def take_back(self, message: Message, why: str) -> None:
        self.taken_back.append((message.body, why))

    def handled(self, count: int, seconds: float) -> None:
        self.handled_times.append((count, round(seconds, 2)))

    def took_long(self, message: Message, began: float, handler: str) -> None:
        assert not message.answered
        self.long.append((message.body, round(asyncio.get_running_loop().time() - began, 2), handler))


class Attempts:
    """Takes failures."""

    def __init__(self) -> None:
        self.failures: list[tuple[bytes, str]] = []

    async def failed(self, message: Message, error: BaseException) -> None:
        self.failures.append((message.body, type(error).__name__))


class Case:
    """A handler that runs over some messages."""

    def __init__(self, handler: Callable[[Message], Any], *given: Message) -> None:
        self.owner, self.desk, self.attempts = Owner(), Desk(), Attempts()
        self.queue = deque(given)
        self.busy: dict[asyncio.Task[object], Message] = {}
        owner: Any = self.owner
        inbox: Any = SimpleNamespace(
            iterations=SimpleNamespace(new=lambda: Messages(queue_of(self.queue, 5), owner, lambda: None)),
            pace=self.desk,
            ledger=SimpleNamespace(handled=self.busy, take_back=self.desk.take_back, took_long=self.desk.took_long),
            giving_up=self.attempts,
        )
        self.handling = Handling(inbox, handler)
        self.task: asyncio.Task[None] | None = None

    @property
    def taken_back(self) -> list[tuple[bytes, str]]:
        return self.desk.taken_back

    def run(self, concurrency: int = 1) -> asyncio.Task[None]:
        self.task = asyncio.create_task(self.handling.run(concurrency))
        return self.task

    async def end(self) -> None:
        self.owner.is_closed = True
        self.handling.cancel()
        assert self.task is not None
        for waiter in self.owner.arrivals:
            if not waiter.done():
                waiter.set_result(None)
        await asyncio.wait({self.task})


async def stopped(case: Case) -> None:
    """Close when all was taken, and wait."""
    await eventually(lambda: not case.queue and case.owner.arrivals)
    assert case.task is not None
    case.task.cancel()
    await asyncio.wait({case.task})


async def test_times_are_reported_at_once_if_long_and_else_together() -> None:
    async def handle(message: Message) -> None:
        block(0.2 if message.body == b"65" else 0.0005)

    case = Case(handle, *messages(70))
    case.run()
    await stopped(case)
    assert case.desk.handled_times == [(64, 0.03), (1, 0.2), (5, 0.0)]  # the rest at the end
    assert case.desk.long == [(b"65", 0.2, handle.__qualname__)]


async def test_waiting_for_a_message_is_not_handling_it() -> None:
    async def handle(_: Message) -> None:
        await dawdle(0.1)

    case = Case(handle, *messages(1))
    case.run(concurrency=2)
    await eventually(lambda: case.owner.arrivals)
    await dawdle(5.0)
    case.queue.extend(messages(1, first=2))
    case.owner.arrivals[-1].set_result(None)
    await eventually(lambda: len(case.desk.long) == 2)
    assert case.desk.handled_times == [(1, 0.1)] * 2
    assert [seconds for _, seconds, _ in case.desk.long] == [0.1, 0.1]
    await stopped(case)


async def test_each_end_of_a_handler_has_its_answer() -> None:
    source = Source()

    async def handle(message: Message) -> None:
        if message.body == b"2":
            message.requeue(5.0)
        if message.body == b"3":
            raise ValueError
        if message.body == b"4":
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    case = Case(handle, *messages(4, source))
    case.run()
    await stopped(case)
    assert source.answers == [(1, "finish"), (2, 5.0)]
    assert case.attempts.failures == [(b"3", "ValueError"), (b"4", "CancelledError")]
    assert not case.busy


class Ends(BaseException):
    """No failure of a message."""


async def test_what_is_no_exception_gives_back_and_ends_the_run() -> None:
    async def handle(_: Message) -> None:
        raise Ends

    source = Source()
    (message,) = messages(1, source)
    (done,), _ = await asyncio.wait({Case(handle, message).run()})
    assert isinstance(done.exception(), Ends)
    assert source.answers == [(1, 0)]
    assert isinstance(message.source, Returned)
    assert message.source._why == "its handler raised Ends"


async def test_a_running_handler_is_known_by_its_message_and_task() -> None:
    may_end, tasks = asyncio.Event(), []

    async def handle(_: Message) -> None:
        tasks.append(asyncio.current_task())
        await may_end.wait()

    case = Case(handle, *messages(1))
    case.run()
    await eventually(lambda: tasks)
    assert [(task, message.body) for task, message in case.busy.items()] == [(tasks[0], b"1")]
    may_end.set()
    await stopped(case)
    assert not case.busy


async def test_closing_cancels_handlers_and_gives_their_messages_back() -> None:
    started = asyncio.Event()

    async def handle(_: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    case = Case(handle, *messages(1))
    case.run()
    await started.wait()
    await case.end()
    assert case.taken_back == [(b"1", "its handler was cancelled")]


async def test_messages_of_one_ordered_partition_are_handled_one_at_a_time() -> None:
    source, running, order = Source(is_ordered=True), [0], []

    async def handle(message: Message) -> None:
        running[0] += 1
        order.append((message.body, running[0]))
        await dawdle(0.01)
        running[0] -= 1

    case = Case(handle, *messages(4, source))
    case.run(concurrency=3)
    await eventually(lambda: len(source.answers) == 4)
    assert order == [(b"%d" % n, 1) for n in (1, 2, 3, 4)]
    case.queue.extend(messages(2, first=5))
    for waiter in case.owner.arrivals:
        if not waiter.done():
            waiter.set_result(None)
    await eventually(lambda: len(order) == 6)
    assert order[4:] == [(b"5", 1), (b"6", 2)]  # these are not of an ordered channel
    await stopped(case)


async def test_of_an_ordered_partition_the_next_ones_go_back_with_their_handler() -> None:
    source, started = Source(is_ordered=True), asyncio.Event()

    async def handle(_: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    case = Case(handle, *messages(3, source))
    case.run(concurrency=3)
    await started.wait()
    await turn(5)
    await case.end()
    why = "the handler of its partition was cancelled"
    assert case.taken_back == [(b"1", "its handler was cancelled"), (b"3", why), (b"2", why)]


async def test_parked_messages_of_a_lost_connection_are_not_handled() -> None:
    source, may_end, seen = Source(is_ordered=True), asyncio.Event(), []

    async def handle(message: Message) -> None:
        seen.append(message.body)
        await may_end.wait()

    case = Case(handle, *messages(2, source))
    case.run(concurrency=2)
    await eventually(lambda: not case.queue)
    await turn(3)
    source.is_alive = False
    may_end.set()
    await turn(10)
    assert seen == [b"1"]
    await stopped(case)


async def test_an_error_of_the_iterator_is_raised_as_it_is() -> None:
    async def handle(_: Message) -> None: ...

    for concurrency in (1, 3):
        case = Case(handle)
        task = case.run(concurrency)
        await turn(5)
        case.owner.arrivals[0].set_exception(ConnectionLostError("gone"))
        await asyncio.wait({task})
        error = task.exception()
        assert type(error) is ConnectionLostError
        assert error.__suppress_context__
        assert len(case.owner.arrivals) == 1


# ---------------------------------------------------------------- threads


@pytest.mark.real_time
async def test_functions_run_in_as_many_threads_as_are_needed() -> None:
    threads, may_end = HandlerThreads(2), threading.Event()
    names: list[str] = []

    def work(number: object) -> object:
        names.append(threading.current_thread().name)
        if number:
            may_end.wait(10.0)
        return number

    assert await threads.call(work, 0) == 0
    await threads.call(work, 0)
    assert names == ["nsq_ha handler 1"] * 2
    tasks = [asyncio.create_task(threads.call(work, number)) for number in (1, 2, 3)]
    await eventually(lambda: len(names) == 4)
    assert set(names) == {"nsq_ha handler 1", "nsq_ha handler 2"}
    assert all(each.daemon for each in threading.enumerate() if each.name.startswith("nsq_ha handler"))
    may_end.set()
    assert await asyncio.gather(*tasks) == [1, 2, 3]
    assert (threads._busy, threads._started) == (0, 2)
    threads.close()
    await eventually(lambda: not [each for each in threading.enumerate() if each.name.startswith("nsq_ha handler")])


@pytest.mark.real_time
async def test_a_function_whose_caller_has_gone_before_it_began_is_not_called() -> None:
    """on_give_up was called for a message that had gone back to nsqd, if all threads were busy until then."""
    threads, may_end = HandlerThreads(1), threading.Event()
    called: list[object] = []
    first = asyncio.create_task(threads.call(lambda _: may_end.wait(10.0), None))
    gone, last = (asyncio.create_task(threads.call(called.append, name)) for name in ("gone", "last"))
    await turn()
    gone.cancel()
    await asyncio.wait({gone})
    may_end.set()
    await asyncio.gather(first, last)
    assert (called, threads._busy) == (["last"], 0)
    threads.close()


@pytest.mark.real_time
async def test_a_thread_has_the_callers_context_and_returns_its_error() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("mine")
    threads = HandlerThreads(1)
    assert await threads.call(lambda _: variable.get(), None) == "mine"
    error = KeyError("no")

    def fail(given: object) -> None:
        raise error if given is None else StopIteration(given)

    with pytest.raises(KeyError) as caught:
        await threads.call(fail, None)
    assert caught.value is error
    with pytest.raises(RuntimeError, match=r"^handler raised StopIteration\(5\)$") as stopped_error:
        await threads.call(fail, 5)
    assert isinstance(stopped_error.value.__cause__, StopIteration)
    threads.close()


@pytest.mark.real_time
async def test_a_thread_that_cannot_start_is_not_waited_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = HandlerThreads(1)

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await threads.call(lambda number: number, 1)
    assert await asyncio.wait_for(threads.call(lambda number: number, 2), 10.0) == 2
    threads.close()


def test_what_returns_a_coroutine_is_async() -> None:
    class Async:
        async def __call__(self, _: Message) -> None: ...

    async def function(_: Message) -> None: ...

    assert [is_async(each) for each in (Async(), function, Callable1(), takes_two)] == [True, True, False, False]


# ---------------------------------------------------------------- the inbox


def inbox_of(**options: Any) -> ConsumerInbox:  # noqa: ANN401 - ConsumerConfig's
    config = ConsumerConfig(lookupd=("http://a:1",), **options)
    return ConsumerInbox("orders/ch", config, GiveUpPublisher(config, "orders", None), lambda: None)


@pytest.fixture
async def inbox() -> Any:  # noqa: ANN401 - an async generator
    made = inbox_of()
    made.start()
    yield made
    made.clock.stop()


async def test_an_inbox_says_why_it_cannot_be_used(inbox: ConsumerInbox) -> None:
    with pytest.raises(ClosedError, match=r"^use the consumer with 'async with'$"):
        inbox_of().check_open()
    assert inbox.check_open() is asyncio.get_running_loop()
    inbox.died = ZeroDivisionError("odd")
    inbox.closing.set()
    with pytest.raises(ClosedError, match=r"^the consumer is closed$") as caught:
        inbox.check_open()
    assert caught.value.__cause__ is inbox.died
    refusal = ConnectionLostError("refused")
    inbox.refused(refusal)
    for _ in range(2):
        with pytest.raises(ConnectionLostError) as raised:
            inbox.check_open()
        assert raised.value is refusal


async def test_one_call_takes_the_messages_at_a_time(inbox: ConsumerInbox) -> None:
    inbox.check_free()
    running = contextlib.ExitStack()
    running.enter_context(inbox.running(7))
    (message,) = messages(1)
    busy: Any = "busy"
    inbox.ledger.handled[busy] = message
    with pytest.raises(ConfigError) as caught:
        inbox.check_free()
    assert str(caught.value) == (
        "orders/ch: run() is active already: raise its concurrency= for more handlers at once, or make another Consumer"
        " for another handler"
    )
    with pytest.raises(ConfigError) as caught:
        inbox.iterate()
    assert str(caught.value) == (
        "orders/ch cannot be iterated while run() hands its messages to a handler: iterate before or after run(), or"
        " make another Consumer"
    )
    assert (inbox.is_busy(busy), inbox.is_busy(None), inbox.may_answer()) == (True, False, True)
    inbox.changed.clear()
    running.close()
    assert inbox.changed.is_set()
    assert not inbox.may_answer()
    inbox.check_free()


async def test_messages_of_a_lost_connection_leave_the_queue(inbox: ConsumerInbox) -> None:
    lost, kept = Source(), Source()
    for source in (lost, kept):
        batch = messages(2, source)
        inbox.arrived(batch)
        assert batch == []
    assert len(inbox.waiting) == 4
    lost.is_alive = False
    inbox.changed.clear()
    inbox.left()
    assert [message.source for message in inbox.waiting] == [kept] * 2
    assert inbox.changed.is_set()


async def test_a_message_that_is_taken_back_is_handed_out_again(inbox: ConsumerInbox) -> None:
    source = Source()
    inbox.arrived(messages(1, source))
    (message,) = inbox.waiting
    inbox.waiting.clear()
    inbox.ledger.take_back(message, "of a test")
    (again,) = inbox.waiting
    assert (message.answered, again.answered, again.body) == (True, False, b"1")
    assert isinstance(message.source, Returned)
    assert message.source._why == "of a test"
    inbox.waiting.clear()
    inbox.ledger.take_back(message, "of a test")
    assert not inbox.waiting
    source.is_alive = False
    again.source = source
    inbox.ledger.take_back(again, "of a test")
    assert not inbox.waiting
    assert source.answers == []


@pytest.mark.parametrize(("options", "answers"), [({}, [(1, 0)]), ({"max_attempts": 3}, [])])
async def test_while_closing_it_goes_back_to_nsqd(options: dict[str, Any], answers: list[object]) -> None:
    inbox = inbox_of(**options)
    source = Source(inbox.ledger)
    inbox.start()
    inbox.arrived(messages(1, source))
    (message,) = inbox.waiting
    inbox.close()
    assert (inbox.closing.is_set(), list(inbox.waiting)) == (True, [])
    inbox.changed.clear()
    inbox.ledger.take_back(message, "of a test")
    assert source.answers == answers
    assert inbox.changed.is_set()
    inbox.end()
    assert inbox.ledger.are_lost


async def test_a_block_that_is_cancelled_has_failed_unless_the_consumer_closes_soon(inbox: ConsumerInbox) -> None:
    source = Source(inbox.ledger)
    one, two = messages(2, source)
    assert inbox.ledger.interrupted(one)
    assert one.answered
    await dawdle(0.2)
    assert source.answers == []
    await dawdle(0.1)
    assert source.answers == [(1, None)]
    assert inbox.ledger.interrupted(two)
    inbox.close()
    await dawdle(1.0)
    assert source.answers == [(1, None)]
    (left,) = inbox.returned()
    assert (left.body, left.answered) == (b"2", False)
    assert inbox.returned() == []
    (three,) = messages(1, source, first=3)
    inbox.ledger.interrupted(three)
    assert source.answers[1:] == [(3, 0)]
    assert isinstance(three.source, Returned)
    assert CLOSED != three.source._why == "the block around it was cancelled"


async def test_who_leaves_gives_back_what_it_holds(inbox: ConsumerInbox) -> None:
    source = Source()
    inbox.arrived(messages(3, source))
    iterator = inbox.iterate()
    held = [await anext(iterator) for _ in range(3)]
    held[0].finish()
    me = asyncio.current_task()
    assert inbox.may_answer()
    inbox.changed.clear()
    inbox.abandon(None, has_failed=True)
    assert inbox.failed() == []
    assert inbox.changed.is_set()
    inbox.abandon(me, has_failed=True)
    assert not inbox.may_answer()
    assert [message.body for message in inbox.failed()] == [b"2", b"3"]
    assert inbox.failed() == []
    assert inbox.returned() == []


async def test_an_iterator_of_a_closed_inbox_ends(inbox: ConsumerInbox) -> None:
    waiting = asyncio.create_task(anext(inbox.iterate()))
    await turn(2)
    inbox.close()
    await asyncio.wait({waiting})
    assert isinstance(waiting.exception(), StopAsyncIteration)
    inbox.died = ZeroDivisionError("odd")
    with pytest.raises(ClosedError):
        await anext(inbox.iterate())
