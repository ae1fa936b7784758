"""The secret for AUTH, from the user's function.

What the function raises or returns may contain the secret, so no error shows it.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

from nsq_ha.base.threads import in_thread, is_async
from nsq_ha.engine.waiting import is_foreign
from nsq_ha.errors import ConfigError, ConnectError
from nsq_ha.options.config import checked_secret

if TYPE_CHECKING:
    from nsq_ha.options.values import SecretFunction


async def secret_of(function: SecretFunction, address: str) -> str:
    """Call the function and return the secret. A plain function runs in a thread of its own.

    Args:
        function: The option ``auth_secret``.
        address: The nsqd that asks for the secret, for errors.

    Raises:
        ConnectError: It raised an error, or returned something that is not a secret; a later call may succeed.

    If cancelled, a plain function continues in its thread, and its result is dropped.
    """
    try:
        found = function() if is_async(function) else await in_thread(function)
        if inspect.isawaitable(found):
            found = await found
        return checked_secret(found)
    except ConfigError as error:
        problem = f"returned no secret: {error}"
        found = None  # this frame is part of the error's traceback
    except (Exception, asyncio.CancelledError) as error:  # whatever the user's function raises
        if not is_foreign(error):
            raise
        problem = f"raised {type(error).__name__}; its text is not shown, since it may contain the secret"
    # Outside of the handlers, so that the error with its text is not kept as a context.
    raise ConnectError(f"{address} asks for AUTH, but the function auth_secret {problem}")
