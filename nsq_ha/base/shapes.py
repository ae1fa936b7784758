"""Decoders of JSON, made by one thread at a time.

msgspec (0.22) ends the process if two threads decode to the same new ``Struct`` together: it looks at the fields when
the first decoder is made, and others take what is half done.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from nsq_ha.base.forks import Mutex

_making: Final = Mutex()


def decoder(shape: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401 - whatever msgspec takes
    """Return a decoder of JSON to ``shape``, which any thread may use.

    Raises:
        TypeError: msgspec does not support the type.
    """
    with _making:
        return msgspec.json.Decoder(shape)
