"""The switcher of versions in the sidebar, and the table ``.. versions-table::``, both of ``docs/versions.json``.

The file lists the versions, newest first, each with the day of its release, or null::

    [{"version": "0.2.0", "released": "2026-12-01"}, {"version": "0.1.0", "released": null}]

Each page carries the list that its build knew, so the switcher needs neither a server nor a script. An old build does
not know newer versions: if the pages are served, ``_static/versions.js`` reads the ``versions.json`` that lies beside
the folders of the versions. A build whose own version is not in the list fails.
"""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sphinx.errors import ConfigError

from docs._ext.reference import Made, table

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

FILE: Final = Path(__file__).parents[1] / "versions.json"
NOT_YET: Final = "not released yet"


@dataclass(frozen=True, slots=True)
class Version:
    """One version.

    Attributes:
        version: Its name, which is also the name of the folder that its pages are in.
        released: What is said of its release: the day, or that there was none.
    """

    version: str
    released: str


def read_versions(file: Path = FILE) -> list[Version]:
    """Return the versions, newest first.

    Raises:
        ValueError: The file is not as the module's docstring says.
    """
    found = []
    for entry in json.loads(file.read_text("utf-8")):
        version, released = entry["version"], entry["released"]
        if not re.fullmatch(r"\d+(\.\w+)+", version):
            raise ValueError(f"{file.name}: {version!r} is no version")
        found.append(Version(version, str(datetime.date.fromisoformat(released)) if released else NOT_YET))
    if len({each.version for each in found}) != len(found):
        raise ValueError(f"{file.name}: a version is listed twice")
    return found


def versions_table() -> str:
    """Return the table of versions."""
    return table(("Version", "Released"), [(each.version, each.released) for each in read_versions()], widths="25 75")


def check(_: Sphinx, config: Config) -> None:
    """Fail if the version that is built is not in the list."""
    if config.release not in (each.version for each in read_versions(Path(config.versions_file))):
        raise ConfigError(f"{config.versions_file} does not list {config.release}: add it")


def add_to_page(app: Sphinx, _: str, __: str, context: dict[str, Any], ___: object) -> None:
    """Give the template what it shows."""
    context["all_versions"] = read_versions(Path(app.config.versions_file))
    context["not_yet"] = NOT_YET


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the table, the template's values and the script."""
    app.add_config_value("versions_file", str(FILE), "html", str)
    app.add_directive("versions-table", type("VersionsTable", (Made,), {"make": staticmethod(versions_table)}))
    app.connect("config-inited", check)
    app.connect("html-page-context", add_to_page)
    app.add_js_file("versions.js", loading_method="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
