"""Plain HTTP of the tests' own."""

import functools
import ssl
from typing import Final

import httpx

NO_CERTIFICATES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For ``verify``: httpx otherwise loads all authorities for each client and each single request, which takes 30 ms."""
get: Final = functools.partial(httpx.get, verify=NO_CERTIFICATES)
post: Final = functools.partial(httpx.post, verify=NO_CERTIFICATES)
