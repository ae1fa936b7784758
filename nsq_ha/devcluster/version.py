"""The version that the dev cluster claims to be, since it behaves like that one."""

from typing import Final

VERSION: Final = "0.3.7-HA.1.13.0"
