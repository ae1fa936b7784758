"""Calls that end at their time limit, and say why."""

from collections.abc import Awaitable, Callable

from nsq_ha.errors import DiscoveryError


async def at_its_limit(call: Callable[[float], Awaitable[object]], *texts: str) -> DiscoveryError:
    """Return the error, with these texts, of a call that cannot be completed.

    A busy machine may need a longer limit to find them.
    """
    found: DiscoveryError | None = None
    for limit in (0.3, 5.0, 30.0):
        try:
            await call(limit)
        except DiscoveryError as error:
            found = error
        if found is not None and all(text in str(found) for text in texts):
            return found
    raise AssertionError(f"{texts} are not in {found!r}")
