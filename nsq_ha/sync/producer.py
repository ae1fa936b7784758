"""The producer for threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Annotated, Any, Concatenate, Final, ParamSpec, Self, Unpack

from msgspec import Meta

import nsq_ha
from nsq_ha.engine.single_use import options_of
from nsq_ha.errors import NsqError, PublishError
from nsq_ha.message import Receipt
from nsq_ha.options.config import ProducerConfig
from nsq_ha.options.environment import config_from_env
from nsq_ha.options.keywords import ProducerOptions
from nsq_ha.options.language import Bytes, option
from nsq_ha.sync.facade import Facade, check_thread, described, method, reads, waits
from nsq_ha.sync.outstanding import Outstanding

_P = ParamSpec("_P")

MOST_BYTES: Final = 64 * 1024 * 1024
"""The default of ``max_pending_bytes``."""

_LIMIT: Final = option("max_pending_bytes", Annotated[Bytes, Meta(ge=1, le=2**40)])

_NOWAIT: Final = """\
Publish one message without waiting; return the future of its receipt.

Takes the arguments of :meth:`publish`. Messages of one thread are queued in the order of the calls. Wrong arguments,
too, are reported by the future.

When ``max_pending_bytes`` are in flight, the call blocks until there is room, at most for ``timeout``. A publish
counts as its body and 1 KiB. A call by a callback of such a future does not wait.

Returns:
    A future with the Receipt or the error. Cancelling it cancels the publish, see :meth:`publish`.

Raises:
    ClosedError: The producer was stopped, or the interpreter exits.
    ConfigError: A parent process started the producer, before it forked this one.
    ResponseTimeoutError: There was no room in time.
"""


def _without_waiting(
    publish: Callable[Concatenate[nsq_ha.Producer, _P], Coroutine[Any, Any, Receipt]],
) -> Callable[Concatenate[Producer, _P], Future[Receipt]]:
    def publish_nowait(self: Producer, /, *args: _P.args, **kwargs: _P.kwargs) -> Future[Receipt]:
        portal = self._started("publish_nowait", waits=False)
        timeout = kwargs.get("timeout")
        limit = self.config.publish_timeout if not isinstance(timeout, int | float) else timeout
        call = partial(publish, self._client, *args, **kwargs)
        return self._outstanding.begin(portal, call, _body_of(args, kwargs), limit)

    described(publish_nowait, publish, _NOWAIT, returns=Future[Receipt])
    publish_nowait.__name__ = "publish_nowait"
    publish_nowait.__qualname__ = "Producer.publish_nowait"
    return publish_nowait


def _body_of(args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    return args[1] if len(args) > 1 else kwargs.get("body")


class Producer(Facade[nsq_ha.Producer]):
    """Publishes from any thread: :class:`nsq_ha.Producer` whose methods wait.

    Takes the same options, and ``max_pending_bytes``. One per process is enough for all its threads. Use it with
    ``with``, or keep it for as long as the process runs: its first use starts it, and the exit of the interpreter
    closes it within ``close_timeout``.

    Args:
        config: As for :class:`nsq_ha.Producer`.
        max_pending_bytes: Bytes of message bodies that :meth:`publish_nowait` may hold, 1..2**40; further calls wait
            for room. All other calls wait for their own message, so they need no such limit.
        **options: As for :class:`nsq_ha.Producer`.

    Raises:
        ConfigError: An option is unknown or out of range, or ``lookupd`` is missing.
    """

    def __init__(
        self,
        *,
        config: ProducerConfig | None = None,
        max_pending_bytes: int = MOST_BYTES,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Check the options; connect to nothing yet."""
        checked = options_of(ProducerConfig, config, options)
        super().__init__(lambda: nsq_ha.Producer(config=checked))
        self._close_limit = self.config.close_timeout
        self._call_limit = self.config.publish_timeout
        self._outstanding = Outstanding(_LIMIT.check(max_pending_bytes))

    @classmethod
    def from_env(cls, *, max_pending_bytes: int = MOST_BYTES, **overrides: Unpack[ProducerOptions]) -> Self:
        """Create a producer from the environment, see :meth:`nsq_ha.Producer.from_env`."""
        return cls(config=config_from_env(ProducerConfig, overrides), max_pending_bytes=max_pending_bytes)

    @method(waits(nsq_ha.Producer.publish))
    def publish(self) -> None: ...

    @method(waits(nsq_ha.Producer.publish_many))
    def publish_many(self) -> None: ...

    @method(waits(nsq_ha.Producer.wait_ready))
    def wait_ready(self) -> None: ...

    @method(reads(nsq_ha.Producer.stats))
    def stats(self) -> None: ...

    @method(reads(nsq_ha.Producer.health))
    def health(self) -> None: ...

    @method(_without_waiting(nsq_ha.Producer.publish))
    def publish_nowait(self) -> None: ...

    @property
    def is_healthy(self) -> bool:
        """Whether :meth:`health` finds nothing wrong."""
        return self._client.is_healthy

    @property
    def config(self) -> ProducerConfig:
        """All options."""
        return self._client.config

    @property
    def trace(self) -> bool | frozenset[str]:
        """See :attr:`nsq_ha.Producer.trace`."""
        return self._client.trace

    @trace.setter
    def trace(self, value: bool | Iterable[str]) -> None:
        self._client.trace = value

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that :meth:`publish_nowait` has taken, from any thread, is stored or has failed.

        Args:
            timeout: Seconds. None waits until the last one has ended, at most its ``publish_timeout``.

        Raises:
            TimeoutError: Some are still under way; they go on.
            PublishError: A publish failed, and nobody has asked its future for the outcome. It is the first such error
                since the last call; a note says how many there are.
        """
        if self._portal is not None:
            check_thread(self._portal, "Producer", "flush")
        self._outstanding.flush(timeout)

    def _late(self, name: str, limit: float | None, topic: object) -> NsqError:
        error = super()._late(name, limit, topic)
        if not name.startswith("publish"):
            return error
        failure = PublishError(str(error), topic=str(topic), partition=None, attempts=0, maybe_stored=True)
        failure.__cause__ = error
        return failure

    async def _close(self, error: BaseException | None) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._close_limit
        try:
            # Those that wait for the first look-up of their topic would fail as soon as closing begins.
            await self._outstanding.drain(self._close_limit)
        except asyncio.CancelledError:
            deadline = loop.time()  # nobody waits any more: close at once
            raise
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await super()._close(error)
            self._outstanding.warn()
