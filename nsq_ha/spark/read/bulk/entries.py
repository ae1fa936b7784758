"""Decode the entries of an answer with numpy: a log that was published one by one has one for each message.

An entry is a struct of a few numbers, whose bytes vary in number, so that only the one before says where an entry
begins. But most entries differ from their neighbours only in how many bytes ``MsgSize`` takes. So this takes the layout
of one entry, finds the following ones by it, and checks all their bytes at once; where one differs, its layout is next.

**Source:** ``spark.pull.calls``, which has the types; ``spark.pull.gob`` for the numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from nsq_ha.spark.pull import gob
from nsq_ha.spark.pull.calls import MAX_ENTRIES, Pulled
from nsq_ha.spark.pull.gob import decode_uint, width_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Data = NDArray[np.uint8]

_FIRST_LOT: Final = 16
"""Entries that are tried with one layout; twice as many after each lot that fits."""

_BOUNDS: Final = np.array([1 << 7, 1 << 8, 1 << 16, 1 << 24])
"""From these numbers on, one more byte."""


class Entries(NamedTuple):
    """What PUBs and MPUBs wrote, an entry each.

    Attributes:
        offsets: Where each begins in the partition's queue, in bytes.
        sizes: Bytes of its messages, as they are stored there.
        begins: Where they begin in the answer.
    """

    offsets: Numbers
    sizes: Numbers
    begins: Numbers


class _Layout(NamedTuple):
    """Where the fields of an entry stand.

    Attributes:
        offset: Place and width of its ``MsgOffset``, from its begin on. None if that is 0.
        size: The same of its ``MsgSize``.
        mask: The bits that are the same in each entry of this layout, byte by byte.
        bits: What they are.
    """

    offset: tuple[int, int] | None
    size: tuple[int, int]
    mask: Data
    bits: Data


def entries_of(pulled: Pulled) -> Entries:
    """Decode the entries of an answer.

    Raises:
        RemoteProtocolError: They are not understood, or their number or a size differs from that of the messages.
    """
    data = pulled.data
    raw: Data = np.frombuffer(data, np.uint8)
    none = np.zeros(0, np.int64)
    offsets, sizes, begins = none, none, none
    step, at = decode_uint(data, 0)
    if step == 1:
        count, at = decode_uint(data, at)
        if count > MAX_ENTRIES:
            raise gob.wrong(f"{count} entries")
        offsets, sizes, at = _places(pulled, raw, at, count)
        if ((sizes < 0) | (sizes > len(data))).any():
            raise gob.wrong("an entry of an impossible size")
        step, at = decode_uint(data, at)
    if step == 1 + (not len(sizes)):
        count, at = decode_uint(data, at)
        if count != len(sizes):
            raise gob.wrong(f"{len(sizes)} entries, but the messages of {count}")
        widths = 1 + np.searchsorted(_BOUNDS, sizes, "right")
        begins = at + np.cumsum(widths + sizes) - sizes
        at = int(begins[-1] + sizes[-1]) if count else at
        if at > len(data) or (_numbers(raw, begins - widths) != sizes).any():
            raise gob.wrong("messages in an entry of another size")
        step, at = decode_uint(data, at)
    if step or at != len(data) or len(begins) != len(sizes):
        raise gob.wrong("entries that are cut")
    return Entries(offsets, sizes, begins)


def _places(pulled: Pulled, raw: Data, at: int, count: int) -> tuple[Numbers, Numbers, int]:
    """Return offset and size of each entry, and where the last one ends."""
    # Bytes are faster to look into than a view of them.
    most = count * (1 + len(pulled.fields) * (1 + gob.MAX_BYTES))
    head, begin = bytes(pulled.data[at : at + most]), at
    raw = raw[at : at + most]
    offsets, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
    at = done = 0
    lot = _FIRST_LOT
    while done < count:
        layout = _layout(head, at, pulled.fields)
        starts = _alike(head, at, min(lot, count - done), layout)
        fits = _fitting(raw, starts, layout)
        which = slice(done, done + fits)
        sizes[which] = _numbers(raw, starts[:fits] + layout.size[0]) >> 1
        if layout.offset is not None:
            offsets[which] = _numbers(raw, starts[:fits] + layout.offset[0]) >> 1
        done += fits
        last = int(starts[fits - 1])
        at = last + len(layout.mask) + width_at(head, last + layout.size[0]) - layout.size[1]
        lot = 2 * lot if fits == len(starts) else _FIRST_LOT
    return offsets, sizes, begin + at


def _layout(data: bytes, begin: int, fields: tuple[str, ...]) -> _Layout:
    """Return the layout of the entry that begins there."""
    places: dict[str, tuple[int, int]] = {}
    mask, bits = bytearray(), bytearray()
    at, field = begin, -1
    try:
        while step := data[at]:
            field += step
            digit, width = data[at + 1], width_at(data, at + 1)
            places[fields[field]] = at + 1 - begin, width
            # A number of one byte is below 128; another one begins with its width.
            mask += bytes((255, 128 if width == 1 else 255)) + bytes(width - 1)
            bits += bytes((step, 0 if width == 1 else digit)) + bytes(width - 1)
            at += 1 + width
    except IndexError:
        raise gob.wrong("entries that are cut, or have more fields than their type") from None
    offset, size = places.get("MsgOffset"), places.get("MsgSize")
    if size is None or (offset is not None and offset > size):
        raise gob.wrong("an entry without messages, or of another version of nsqd")
    # The width of the size is left open.
    mask[size[0]] = 0
    return _Layout(offset, size, np.frombuffer(mask + b"\xff", np.uint8), np.frombuffer(bits + b"\0", np.uint8))


def _alike(data: bytes, begin: int, count: int, layout: _Layout) -> Numbers:
    """Return where entries begin, if they have the same layout; fewer at the end of the data."""
    place, width = layout.size
    rest = len(layout.mask) - width
    found: list[int] = []
    end = len(data) - rest
    while len(found) < count and begin < end:
        found.append(begin)
        digit = data[begin + place]
        begin += rest + (1 if digit < gob.LARGEST_DIGIT else 257 - digit)
    return np.array(found, np.int64)


def _fitting(raw: Data, starts: Numbers, layout: _Layout) -> int:
    """Return how many of the entries, from the first on, have the layout; that one has."""
    place, width = layout.size
    after = starts + place + _widths(raw[starts + place].astype(np.int64))
    tail = len(layout.mask) - place - width
    ends = after + tail
    fits = ends <= len(raw)
    columns = np.concatenate(
        [starts[:, None] + np.arange(place), np.minimum(after, len(raw) - tail)[:, None] + np.arange(tail)], axis=1
    )
    known = np.r_[0:place, place + width : len(layout.mask)]
    mask = layout.mask[known]
    fits &= ((raw[columns] & mask) == layout.bits[known] & mask).all(axis=1)
    return int(np.argmin(fits)) if not fits.all() else len(fits)


def _numbers(raw: Data, places: Numbers) -> Numbers:
    """Decode the numbers at these places."""
    digits = raw[places].astype(np.int64)
    widths = _widths(digits)
    found = np.where(widths == 1, digits, 0)
    for width in np.unique(widths[widths > 1]).tolist():
        which = np.flatnonzero(widths == width)
        if width > gob.MAX_BYTES or int(places[which[-1]]) + width > len(raw):
            raise gob.wrong(f"a number of {width - 1} bytes, or one that is cut")
        value = np.zeros(len(which), np.int64)
        for byte in range(1, width):
            value = value << 8 | raw[places[which] + byte]
        found[which] = value
    return found


def _widths(digits: Numbers) -> Numbers:
    """Return how many bytes the numbers take that begin with these, as :func:`~nsq_ha.spark.pull.gob.width_at`."""
    return np.where(digits < gob.LARGEST_DIGIT, 1, 257 - digits)
