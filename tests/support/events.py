"""What a client reports through ``on_event``."""

from nsq_ha.events import Event


class Events(list[Event]):
    """Keeps all events."""

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self if isinstance(event, kind)]


def plain(event: Event) -> dict[str, object]:
    """Return the fields but the time."""
    return {name: getattr(event, name) for name in type(event).__struct_fields__ if name != "at"}
