"""Settings of the documentation's build: Sphinx with furo and MyST; a dead reference is an error."""

import builtins
import functools
import gc
import os
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sphinx.search.en import SearchEnglish

from nsq_ha.protocol import ext_filter, identify

# Imported there for type checkers only, and autodoc reads the annotation.
vars(identify).setdefault("FilterRule", ext_filter.FilterRule)

# A build is half a minute of pure Python: most of its objects stay, and most words come again.
gc.set_threshold(200_000, 20, 20)
SearchEnglish.stem = functools.cache(SearchEnglish.stem)  # type: ignore[method-assign]

project = "nsq_ha"
author = "the nsq_ha developers"
release = version = installed_version("nsq_ha")
# It is at the foot of each page, and so is the version that the page describes.
copyright = f"2026, the nsq_ha developers. These pages describe nsq_ha {release}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    "docs._ext.breaks",
    "docs._ext.charts",
    "docs._ext.citations",
    "docs._ext.commands",
    "docs._ext.docstrings",
    "docs._ext.figures",
    "docs._ext.fuzz_table",
    "docs._ext.index_places",
    "docs._ext.layout",
    "docs._ext.links",
    "docs._ext.navigation",
    "docs._ext.reference",
    "docs._ext.states",
    "docs._ext.tests_shown",
    "docs._ext.versions",
]
exclude_patterns = ["_build"]
# Curly quotes only: the names of flags begin with two hyphens.
smartquotes_action = "q"

html_theme = "furo"
html_static_path = ["_static"]
templates_path = ["_templates"]
# Those of furo, and the switcher of versions.
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_css_files = ["side.css"]
html_title = f"nsq_ha {release}"
html_favicon = "_static/logo.svg"
html_logo = "_static/logo.svg"

# The button copies commands without their prompt, and leaves out what they print.
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

# Not in the environment of the pages: half a gigabyte.
autodoc_mock_imports = ["numpy", "pyarrow", "pyspark"]
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88

napoleon_numpy_docstring = False

# A build must not need the network. With this variable, names that others document become links; ours always are.
if os.environ.get("NSQ_HA_DOCS_LINKS"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {"python": ("https://docs.python.org/3", None)}

nitpicky = True
nitpick_ignore = [(role, name) for name in dir(builtins) for role in ("py:class", "py:exc", "py:obj")]
# In signatures, and not public: aliases of builtin types, and what the library itself implements.
nitpick_ignore += [
    ("py:class", name)
    for name in ("Access", "Advice", "Cluster", "FilterRule", "Key", "Publisher", "Rule", "Upgrade", "_Handler")
]
nitpick_ignore += [
    ("py:class", name) for name in ("ChannelFlow", "Earlier", "Memory", "Replicas", "TopicPartition", "Trouble")
]
nitpick_ignore += [
    ("py:class", f"nsq_ha.{name}")
    for name in (
        "admin.memory.ChannelFlow",
        "admin.memory.Memory",
        "admin.reading.Earlier",
        "admin.reading.Replicas",
        "dead_letters.letter.Publishes",
        "dead_letters.letter._T_co",
        "message.State",
        "message._T",
        "policy.topology.Pending",
        "policy.topology.PlainTopic",
        "protocol.ext_filter.FilterRule",
        "sync.worker._Handler",
        "worker._Handler",
    )
]
nitpick_ignore_regex = [
    (r"py:.*", r"(asyncio|collections|concurrent|contextlib|dataclasses|datetime|enum|pathlib|ssl|types|typing)\..+"),
    (
        r"py:.*",
        r"(Column|DataFrame|Path|StructType|datetime|TracerProvider|MeterProvider|SparkSession|StreamingQueryProgress|Query(Started|Progress|Terminated)Event)",
    ),
    (r"py:.*", r"(click|httpx|msgspec|opentelemetry|pyarrow|pyspark|starlette)\..+"),
]
