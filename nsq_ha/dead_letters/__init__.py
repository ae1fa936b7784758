r"""Dead letters: messages that a consumer gave up, with where they came from and why they failed.

``on_give_up="dead_letter"`` publishes them in one of two forms, and :meth:`DeadLetter.of` reads both. On a topic with
headers, headers that begin with ``dead_letter_`` join the message's own. On other topics an envelope is around the
body::

    nsq-dead-letter/1 {"topic":"payments", ..., "size":"4"}\nbody

The first line is ASCII: the magic word with the version, one blank and a JSON object. The body follows unchanged. Both
forms have the same fields, and all of them are text: see the page "Dead letters".

The invariant: the body of a dead letter is byte for byte the one that was given up, its headers and tag are the same,
and a dead letter that is given up itself yields the earlier one again, ten times over.
"""

from nsq_ha.dead_letters.letter import DeadLetter, Publishes, replay
from nsq_ha.dead_letters.provenance import Provenance, Reason
from nsq_ha.dead_letters.writing import PREFIX
from nsq_ha.errors import DeadLetterError

__all__ = ["PREFIX", "DeadLetter", "DeadLetterError", "Provenance", "Publishes", "Reason", "replay"]
