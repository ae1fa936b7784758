"""Programs as users write them: how they fork, end and are interrupted. Each runs in a process of its own."""

import textwrap
from dataclasses import dataclass

import pytest

from nsq_ha.devcluster import DevCluster
from nsq_ha.sync import Consumer
from tests.support.programs import STRICT, run

HEAD = """
import multiprocessing, os, signal, sys, threading, warnings
from nsq_ha import ClosedError, ConfigError, NsqError
from nsq_ha.sync import AdminClient, Consumer, Producer
lookupd, topic = sys.argv[1:]
# Python 3.12 and later warn of every fork of a process with threads, which is what these programs are about.
warnings.simplefilter("ignore", DeprecationWarning)

def until(condition):
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)

def child(work):
    '''Run work in a forked process; return the exit code.'''
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        work()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def error(call):
    try:
        call()
    except NsqError as raised:
        return type(raised).__name__ + ": " + str(raised)
"""


@dataclass(slots=True)
class Ended:
    """How a program ended."""

    code: int
    lines: list[str]
    complaints: str


@dataclass(slots=True)
class Programs:
    """Runs programs on one topic."""

    cluster: DevCluster
    topic: str

    def run(self, text: str) -> Ended:
        ran = run(STRICT, HEAD + textwrap.dedent(text), self.cluster.lookupd[0], self.topic)
        return Ended(ran.returncode, ran.stdout.splitlines(), ran.stderr)

    def stored(self, number: int) -> list[bytes]:
        """Return the bodies of ``number`` messages, sorted."""
        bodies = []
        with Consumer(self.topic, "ch", lookupd=self.cluster.lookupd) as consumer:
            for _ in range(number):
                with next(consumer) as message:
                    bodies.append(message.body)
        return sorted(bodies)


@pytest.fixture
def programs(cluster: DevCluster, topic: str) -> Programs:
    return Programs(cluster, topic)


# -- the end


def test_the_end_of_the_program_sends_what_is_under_way(programs: Programs) -> None:
    ended = programs.run("""
        producer = Producer(lookupd=lookupd)
        for number in range(300):
            producer.publish_nowait(topic, b"%03d" % number)
    """)
    assert ended == Ended(0, [], "")
    assert programs.stored(300) == [b"%03d" % number for number in range(300)]


@pytest.mark.slow
def test_the_end_of_the_program_waits_no_longer_than_close_timeout(programs: Programs) -> None:
    """Even if nothing can be sent; it says what was not."""
    node = str(programs.cluster.leader(programs.topic, 0))
    programs.cluster.refuse_writes(node)
    try:
        ended = programs.run("""
            from nsq_ha.process import loop_thread
            loop_thread.GRACE = 60.0  # a busy machine takes more than a second to close what has failed by then
            producer = Producer(lookupd=lookupd, close_timeout=0.2, publish_timeout=3600.0)
            producer.publish_nowait(topic, b"x", partition=0)
        """)
    finally:
        programs.cluster.refuse_writes(node, refuse=False)
    assert ended.code == 0
    assert "1 publishes by publish_nowait() failed" in ended.complaints
    assert "Traceback" not in ended.complaints


@pytest.mark.slow
def test_handlers_of_atexit_may_still_publish(programs: Programs) -> None:
    ended = programs.run("""
        import atexit
        producer = Producer(lookupd=lookupd)
        atexit.register(lambda: producer.publish_nowait(topic, b"last words"))
        producer.publish(topic, b"first words")
    """)
    assert ended == Ended(0, [], "")
    assert programs.stored(2) == [b"first words", b"last words"]


def test_a_handler_that_never_returns_does_not_keep_the_program(programs: Programs) -> None:
    ended = programs.run("""
        Producer(lookupd=lookupd).publish(topic, b"x")
        consumer = Consumer(topic, "ch", lookupd=lookupd, close_timeout=0.1)
        began = threading.Event()

        def hang(message):
            began.set()
            threading.Event().wait()

        threading.Thread(target=consumer.run, args=(hang,), daemon=True).start()
        began.wait()
        print("ends")
    """)
    assert (ended.code, ended.lines) == (0, ["ends"])


# -- forks


def test_a_client_that_was_started_before_a_fork_says_so_in_the_child(programs: Programs) -> None:
    ended = programs.run("""
        producer = Producer(lookupd=lookupd).start()
        consumer = Consumer(topic, "ch", lookupd=lookupd).start()
        admin = AdminClient(lookupd).start()

        def work():
            for call in (
                lambda: producer.publish(topic, b"x"),
                lambda: producer.publish_nowait(topic, b"x"),
                lambda: next(consumer),
                lambda: consumer.run(print),
                admin.topics,
                producer.start,
            ):
                print(error(call))
            for client in (producer, consumer, admin):
                client.stop()
            with Producer(lookupd=lookupd) as own:
                own.publish(topic, b"child")

        print(child(work))
        producer.publish(topic, b"parent")
        consumer.stop()
    """)
    assert (ended.code, ended.complaints) == (0, "")
    *errors, code = ended.lines
    assert code == "0"
    assert len(errors) == 6
    for text in errors:
        assert text.startswith("ConfigError: this ")
        assert "was started before the process was forked" in text
        assert "create it in the child, or start it only after the fork" in text
    assert programs.stored(2) == [b"child", b"parent"]


def test_a_client_that_was_not_started_before_a_fork_works_in_both(programs: Programs) -> None:
    """So does another one whose options name it, and the embedded loop that a parent's client has started."""
    ended = programs.run("""
        other = Producer(lookupd=lookupd)
        other.publish(topic, b"0 parent, before")
        producer = Producer(lookupd=lookupd)

        def work():
            producer.publish(topic, b"1 child")
            producer.publish_nowait(topic, b"2 child, at its end")
            print(child(lambda: print(error(lambda: producer.publish(topic, b"grandchild")))))

        print(child(work))
        producer.publish(topic, b"3 parent")
        other.publish(topic, b"4 parent")
    """)
    assert (ended.code, ended.complaints) == (0, "")
    assert ended.lines[0].startswith("ConfigError: this Producer was started before the process was forked")
    assert ended.lines[1:] == ["0", "0"]
    expected = [b"0 parent, before", b"1 child", b"2 child, at its end", b"3 parent", b"4 parent"]
    assert programs.stored(5) == expected


def test_a_child_that_leaves_the_parents_block_closes_nothing(programs: Programs) -> None:
    ended = programs.run("""
        Producer(lookupd=lookupd).publish(topic, b"0")
        with Producer(lookupd=lookupd) as producer, Consumer(topic, "ch", lookupd=lookupd) as consumer:
            message = next(consumer)
            pid = os.fork()
            if pid:
                print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                message.finish()
                producer.publish(topic, b"1")
    """)
    assert ended == Ended(0, ["0"], "")
    assert programs.stored(1) == [b"1"]


# -- Ctrl-C


INTERRUPT = """
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the shell of the tests has set

        def interrupt_when(condition):
            def run():
                until(condition)
                os.kill(os.getpid(), signal.SIGINT)

            threading.Thread(target=run, daemon=True).start()
"""


def test_ctrl_c_ends_a_publish_and_cancels_it(programs: Programs) -> None:
    node = str(programs.cluster.leader(programs.topic, 0))
    programs.cluster.refuse_writes(node)
    try:
        ended = programs.run(
            INTERRUPT
            + """
        with Producer(lookupd=lookupd, publish_timeout=3600.0, close_timeout=3600.0) as producer:
            interrupt_when(lambda: producer.stats().pending_bytes)
            try:
                producer.publish(topic, b"0", partition=0)
            except KeyboardInterrupt:
                print("interrupted")
            until(lambda: not producer.stats().pending_bytes)
        print("left")
    """
        )
    finally:
        programs.cluster.refuse_writes(node, refuse=False)
    assert ended == Ended(0, ["interrupted", "left"], "")


def test_ctrl_c_ends_a_consumer(programs: Programs) -> None:
    ended = programs.run(
        INTERRUPT
        + """
        try:
            with Consumer(topic, "ch", lookupd=lookupd, close_timeout=3600.0) as consumer:
                interrupt_when(lambda: any(taker._filling for taker in consumer._takers))
                next(consumer)
        except KeyboardInterrupt:
            print("interrupted")
        print(threading.active_count() >= 1)
    """
    )
    assert ended == Ended(0, ["interrupted", "True"], "")


@pytest.mark.slow
def test_ctrl_c_ends_a_start(programs: Programs) -> None:
    """No nsqlookupd answers, and the consumer would wait for it."""
    ended = programs.run(
        INTERRUPT
        + """
        consumer = Consumer("absent", "ch", lookupd=lookupd, start_timeout=3600.0)
        interrupt_when(lambda: consumer._client._connecting is not None)
        try:
            consumer.start()
        except KeyboardInterrupt:
            print("interrupted")
        consumer.stop()
        print("left")
    """
    )
    assert (ended.code, ended.lines) == (0, ["interrupted", "left"])
