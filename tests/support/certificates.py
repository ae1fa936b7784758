"""A certificate for tests, valid on the loopback."""

import ssl
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parents[1] / "certificates"

CA_FILE: Final = str(_FOLDER / "server.pem")
"""What a client must trust."""
KEY_FILE: Final = str(_FOLDER / "server.key")


def server_context() -> ssl.SSLContext:
    """Return the context of a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CA_FILE, KEY_FILE)
    return context
