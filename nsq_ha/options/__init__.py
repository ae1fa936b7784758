"""The options of producers and consumers: ``config`` declares each one, once, in the language of ``language``.

``environment`` reads them from variables and a TOML file; ``keywords`` lists them for type checkers. The names of the
variables stand here, since the command line's help needs them, and shall not load the options.
"""

from typing import Final

PREFIX: Final = "NSQ_HA_"
"""Begins the names of all variables."""

FILE_VARIABLE: Final = f"{PREFIX}CONFIG"
"""Names the TOML file."""

LOOKUPD_VARIABLE: Final = f"{PREFIX}LOOKUPD"
"""Names the nsqlookupds."""
