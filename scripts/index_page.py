"""The README as a package index shows it: hatchling calls this for each build, by ``tool.hatch.metadata.hooks.custom``.

An index has only this one text, so pictures and links to files beside it lead nowhere there. There is no address of the
project yet that they could lead to; once there is one, links and pictures can lead to it instead. So pictures are left
out, such links become their words, a line that is only a link goes, and the list of pages becomes a sentence that says
where the pages are. Links to other sites stay.
"""

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES: Final = """## Documentation

The pages are in the source distribution: unpack it and run `make docs`, which builds them in `docs/_build/html`.

"""
_LOCAL: Final = r"\[([^\]]+)\]\((?!https?://|#)[^)]+\)"


def shown(readme: str) -> str:
    """Return the text for an index."""
    # Code stays as it is: what looks like a link there is none.
    parts = re.split(r"(^```.*?^```$)", readme, flags=re.MULTILINE | re.DOTALL)
    for index in range(0, len(parts), 2):
        text = re.sub(r"<!--.*?-->\n*", "", parts[index], flags=re.DOTALL)
        text = re.sub(rf"<picture>.*?</picture>|^!?{_LOCAL}\n", "", text, flags=re.MULTILINE | re.DOTALL)
        parts[index] = re.sub(r"\n{3,}", "\n\n", re.sub(_LOCAL, r"\1", re.sub(f"!{_LOCAL}", "", text)))
    return re.sub(r"^## Documentation\n.*?(?=^## )", PAGES, "".join(parts), flags=re.MULTILINE | re.DOTALL)


class IndexPage(MetadataHookInterface):
    """Sets the project's ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the text into the metadata."""
        readme = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": shown(readme)}
