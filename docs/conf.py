"""Settings of the documentation's build: Sphinx with furo and MyST; a dead reference is an error."""

import builtins
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

project = "nsq_ha"
author = "the nsq_ha developers"
copyright = "2026, the nsq_ha developers"
release = version = installed_version("nsq_ha")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "docs._ext.layout",
    "docs._ext.reference",
    "docs._ext.states",
    "docs._ext.tests_shown",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["side.css"]
html_title = f"nsq_ha {release}"

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88

napoleon_numpy_docstring = False

# No intersphinx, for a build must not need the network; so names that others document cannot resolve. Ours must.
nitpicky = True
nitpick_ignore = [(role, name) for name in dir(builtins) for role in ("py:class", "py:exc", "py:obj")]
# In signatures, and not public: aliases of builtin types, and what the library itself implements.
nitpick_ignore += [
    ("py:class", name) for name in ("Access", "Advice", "Cluster", "Key", "Publisher", "Upgrade", "_Handler")
]
nitpick_ignore += [
    ("py:class", f"nsq_ha.{name}")
    for name in (
        "dead_letters.letter.Publishes",
        "dead_letters.letter._T_co",
        "message._T",
        "policy.topology.Pending",
        "protocol.ext_filter.FilterRule",
    )
]
nitpick_ignore_regex = [
    (r"py:.*", r"(asyncio|collections|concurrent|contextlib|dataclasses|datetime|enum|pathlib|ssl|types|typing)\..+"),
    (r"py:.*", r"(Path|datetime|SparkSession|StreamingQueryProgress|Query(Started|Progress|Terminated)Event)"),
    (r"py:.*", r"(click|httpx|msgspec|opentelemetry|pyarrow|pyspark|starlette)\..+"),
]
