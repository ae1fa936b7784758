"""Plain HTTP of the tests' own."""

import ssl
from typing import Final

NO_CERTIFICATES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For ``verify``: httpx otherwise loads all authorities for each client and each single request, which takes 30 ms."""
