"""Every example of the pages runs, every command of theirs exists, and the tables tell all there is to tell."""

import asyncio
import contextlib
import importlib
import inspect
import pkgutil
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from _pytest.mark import ParameterSet

import nsq_ha
from docs._ext import reference
from nsq_ha.cli.app import app
from nsq_ha.cli.dev import make_examples, nsqd_tls
from nsq_ha.devcluster import DevCluster
from nsq_ha.spark import functions
from nsq_ha.spark.options import KNOWN
from nsq_ha.spark.read.columns import COLUMNS
from scripts import index_page
from tests.examples import ROOT, PageRun, commands_of, examples_of, programs_of
from tests.spark_host import SparkHost
from tests.test_journey import FIRST, PLAIN, README, tutorials

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "_build" not in page.parts]
EXAMPLES = [example for page in PAGES for example in examples_of(page)]
COMMANDS = [
    (example, command, program)
    for example in EXAMPLES
    for command, _ in commands_of(example)
    for program in programs_of(command)
]

JOURNEY = {README, FIRST, PLAIN, *tutorials()}
"""Run by their own test, on one cluster."""

EXAMPLES_CLUSTER = re.compile(r"nsq-ha dev (?P<plain>--plain )?--examples(?P<tls> --tls-cert)?")
"""The line by which a page says that it needs the topics and messages of the README's cluster."""
SECOND_CLUSTER = re.compile(r"nsq-ha dev --topic (?P<topic>\w+):(?P<partitions>\d) --port (?P<port>\d+)")
CERTIFICATES = ROOT / "tests" / "certificates"

LANGUAGES = {"python", "console", "text", "json", "toml", "ini", "yaml"}
SHELL_WORDS = {"cd", "export", "source", "unset"}
OTHER_PROGRAMS = {
    *SHELL_WORDS,
    "git",
    "openssl",
    "python",
    "pip",
    "seq",
    "pytest",
    "cat",
    "printf",
    "venv-pack",
    "spark-submit",
    "spark-class",
    "nsq_to_file",
}
PUBLIC_MODULES = [
    "nsq_ha",
    "nsq_ha.admin",
    "nsq_ha.dashboard",
    "nsq_ha.dead_letters",
    "nsq_ha.devcluster",
    "nsq_ha.errors",
    "nsq_ha.events",
    "nsq_ha.prometheus",
    "nsq_ha.protocol",
    "nsq_ha.spark",
    "nsq_ha.stats",
    "nsq_ha.sync",
    "nsq_ha.telemetry",
    "nsq_ha.testing",
    "nsq_ha.tracelog",
]
OF_SPARK = {
    "functions": ["by_partition", "decode_json", "drop_repeats", "partition_for", "row_id", "split_bad", "Split"],
    "lag": ["lag_of", "LagListener", "PartitionLag", "StreamLag"],
    "session": ["local_session", "register"],
}
"""What is public there; ``nsq_ha.spark`` itself has no names, since it imports no PySpark."""
MEASURED = ["drain, 100 B", "MPUB of 100 x 100 B"]
"""The columns of the README's table, by their names in that of the measurement."""
MOST_SKIPPED = 3
"""Examples that may be left out; more than that and a page had better be written otherwise."""


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def uses_spark(page: Path) -> bool:
    return any("spark" in example.settings for example in examples_of(page))


def as_parameter(page: Path) -> ParameterSet:
    """The journey runs Spark at each change."""
    return pytest.param(page, id=named(page), marks=[pytest.mark.spark, pytest.mark.slow] if uses_spark(page) else [])


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page", [as_parameter(page) for page in sorted({example.page for example in EXAMPLES} - JOURNEY)]
)
def test_the_examples_of_a_page_run(
    page: Path, spark_host: SparkHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.read_text("utf-8")
    wanted, second = EXAMPLES_CLUSTER.search(text), SECOND_CLUSTER.search(text)
    plain = wanted is not None and wanted["plain"] is not None
    tls, places = None, {}
    if wanted and wanted["tls"]:
        shutil.copy(CERTIFICATES / "server.pem", tmp_path)
        tls = nsqd_tls(str(CERTIFICATES / "server.pem"), str(CERTIFICATES / "server.key"))
    with contextlib.ExitStack() as stack:
        cluster = DevCluster(plain=plain, nsqlookupds=1 if plain else 2, nsqds=1 if plain else 3, tls=tls)
        stack.enter_context(cluster)
        if wanted:
            make_examples(cluster, plain=plain)
        if second:
            other = stack.enter_context(DevCluster())
            other.create_topic(second["topic"], int(second["partitions"]))
            places[f"http://127.0.0.1:{second['port']}"] = other.lookupd[0]
        monkeypatch.setenv("NSQ_HA_LOOKUPD", ",".join(cluster.lookupd))
        asyncio.run(PageRun(cluster, tmp_path, spark_host, places).run(examples_of(page)))


def test_a_page_hides_no_code() -> None:
    """What a comment holds would be run by nobody."""
    assert not [named(page) for page in PAGES if re.search(r"<!--[^>]*\n", page.read_text("utf-8"))]


def test_a_page_names_each_file_that_its_reader_saves() -> None:
    files = [(example, example.settings["file"]) for example in EXAMPLES if "file" in example.settings]
    assert len(files) > 20
    assert not [str(example) for example, name in files if f"`{name}`" not in example.page.read_text("utf-8")]


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_a_readme_names_the_command_for_the_job_and_that_for_the_tests(name: str) -> None:
    commands = re.findall(r"`(make \w+)", (ROOT / name).read_text("utf-8"))
    assert {"make demo", "make test"} <= set(commands)


def test_few_examples_are_skipped_and_each_says_why() -> None:
    skipped = {str(example): example.settings["skip"] for example in EXAMPLES if "skip" in example.settings}
    assert len(skipped) <= MOST_SKIPPED, skipped
    assert all(len(reason.split()) > 3 for reason in skipped.values()), skipped
    for example in EXAMPLES:
        if {"skip", "library"} & example.settings.keys() and example.language == "python":
            compile(example.code, str(example), "exec", flags=0x2000)  # PyCF_ALLOW_TOP_LEVEL_AWAIT


def test_every_block_is_of_a_kind_that_is_looked_at() -> None:
    strange = {
        str(example): example.language
        for example in EXAMPLES
        if example.language not in LANGUAGES and not example.language.startswith("{")
    }
    assert not strange
    # An example of another markup would be shown as code and run by nobody.
    assert not [str(example) for example in EXAMPLES if "code-block" in example.language]


def test_a_command_that_a_page_shows_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    monkeypatch.chdir(tmp_path)
    for name in ("trace.jsonl", "server.pem", "server.key"):  # which commands read, and the pages have made before
        Path(name).touch()
    for example, command, (program, *arguments) in COMMANDS:
        name = Path(program).name
        if name == "nsq-ha":
            try:
                parse(app, "nsq-ha", arguments)
            except click.ClickException as error:
                raise AssertionError(f"{example}: {command}: {error.message}") from error
        elif name == "make":
            assert next(word for word in arguments if "=" not in word) in targets, example
        else:
            assert name in OTHER_PROGRAMS, f"{example}: {command}"


def parse(command: click.Command, name: str, arguments: list[str], parent: click.Context | None = None) -> None:
    """Check options and arguments as click does, without running anything."""
    context = command.make_context(name, arguments, parent=parent)
    if isinstance(command, click.Group):
        # Click 8 keeps the subcommand apart, click 9 will not.
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        child_name, child, left = command.resolve_command(context, rest)
        assert child_name is not None
        assert child is not None
        parse(child, child_name, left, context)


def described(page: Path) -> list[str]:
    """Return the dotted names that a page of the reference describes."""
    text = page.read_text("utf-8")
    kinds = r"(?:autoclass|autofunction|autoexception|py:data):: "
    names = re.findall(rf"^\.\. {kinds}(nsq_ha[\w.]+)", text, re.MULTILINE)
    for module, options in re.findall(r"^\.\. automodule:: (\S+)\n((?:   .*\n)*)", text, re.MULTILINE):
        if ":members:" in options:
            left_out = re.findall(r"\w+", "".join(re.findall(r":exclude-members:(.*)", options)))
            chosen = re.findall(r"\w+", "".join(re.findall(r":members:(.+)", options)))
            names += [f"{module}.{name}" for name in chosen or public(module) if name not in left_out]
    if "errors-details::" in text:
        names += [f"nsq_ha.errors.{error.__name__}" for error, _ in reference.error_classes()]
    return names


def public(module: str) -> list[str]:
    """Return the public names of a module: its ``__all__``, or what it defines without an underscore."""
    found = importlib.import_module(module)
    of_its_own = [name for name, value in vars(found).items() if getattr(value, "__module__", "") == module]
    names: list[str] = getattr(found, "__all__", of_its_own)
    return [name for name in names if not name.startswith("_")]


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    pages: dict[int, set[str]] = {}
    for page in sorted((ROOT / "docs" / "reference").rglob("*.md")):
        for name in described(page):
            pages.setdefault(id(pkgutil.resolve_name(name)), set()).add(named(page))
    wanted = {f"{module}.{name}" for module in PUBLIC_MODULES for name in public(module)}
    wanted -= {"nsq_ha.errors.few", "nsq_ha.errors.server_error"}  # how the library makes them
    wanted |= {f"nsq_ha.spark.{module}.{name}" for module, names in OF_SPARK.items() for name in names}
    found = {name: pages.get(id(pkgutil.resolve_name(name)), set()) for name in wanted}
    assert not {name: on for name, on in found.items() if len(on) != 1}
    assert len(found) > 120


def test_the_index_of_the_reference_names_the_public_modules_and_its_pages() -> None:
    index = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    assert set(re.findall(r"`(nsq_ha\.\w+)`", index)) | {"nsq_ha"} == set(PUBLIC_MODULES)
    pages = {f"api/{page.stem}" for page in (ROOT / "docs" / "reference" / "api").glob("*.md")}
    assert set(re.findall(r"<(api/[\w-]+)>", index)) == pages


def test_a_page_with_a_class_that_takes_options_shows_them() -> None:
    shown = 0
    for page in sorted((ROOT / "docs" / "reference" / "api").glob("*.md")):
        takes = [name for name in described(page) if takes_options(pkgutil.resolve_name(name))]
        if takes:
            text = page.read_text("utf-8")
            assert "options-table::" in text or "{doc}`producer <producer>`" in text, (page, takes)
            shown += len(takes)
    assert shown >= 8


def takes_options(described_object: object) -> bool:
    if not isinstance(described_object, type) or getattr(described_object, "_is_protocol", False):
        return False
    # A method of a wrapper or of a metaclass is not the class's own.
    first = vars(described_object).get("__init__")
    if first is None:
        return False
    kinds = {parameter.kind for parameter in inspect.signature(first).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds


VALUE = r"(\d[\d,.]*(?: (?:s|KiB|MiB))?)(?! to)\b"
WRITTEN = re.compile(rf"`(?P<name>\w+)`(?:\s+(?:is|messages|of))?\s+\(?{VALUE}|{VALUE}[^.`()]*\(`(?P<after>\w+)`\)")
"""An option and its default in a sentence: "`name` (5 s)", "`name` is 5 s" and "5 s of something (`name`)"."""


def test_a_default_in_a_sentence_is_that_of_the_option() -> None:
    defaults = {option.name: option.default for option in reference.options() if option.default != "``None``"}
    checked = 0
    for page in PAGES:
        for found in WRITTEN.finditer(
            re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        ):
            name, value = found["name"] or found["after"], found[2] or found[3]
            if name in defaults and page.name != "from-pynsq.md":  # that one converts what pynsq is given
                assert defaults[name].startswith(value), f"{named(page)}: {found[0]!r}, but it is {defaults[name]}"
                checked += 1
    assert checked > 10


def test_the_options_that_the_page_on_kafka_names_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "kafka.md").read_text()
    named_words = {code.partition("=")[0] for code in re.findall(r"`([a-zA-Z_]+(?:=\w+)?)`", page)}
    ours = KNOWN.keys() | COLUMNS.keys() | vars(functions).keys() | {"tag"}
    of_others = {"groupIdPrefix", "hashCode", "nsq"}
    assert named_words - ours <= of_others
    same = page.partition("## Same name, same meaning")[2].partition("; the columns")[0]
    assert len(set(re.findall(r"`(\w+)`", same)) & KNOWN.keys()) == 15
    # Where Kafka has one word and NSQ another, it is NSQ's that must exist.
    renamed = page.partition("## Other name, same meaning")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in renamed.splitlines() if line.startswith("| `")]
    assert len(rows) == 11
    assert all(set(re.findall(r"`(\w+)`", row)) <= KNOWN.keys() and "`" in row for row in rows)


def test_the_page_on_reading_with_spark_has_every_column() -> None:
    page = (ROOT / "docs" / "how-to" / "spark.md").read_text().partition("## Columns")[2]
    cells = "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", cells)) == set(COLUMNS)


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_local_links_of_the_readme_lead_somewhere(name: str) -> None:
    links = re.findall(r'(?:\]\(|src(?:set)?=")(?!https?://|#)([^)#"]+)', (ROOT / name).read_text("utf-8"))
    assert len(links) > 5
    assert not [link for link in links if not (ROOT / link).exists()]


def test_the_chinese_readme_shows_the_same_code_and_links_as_the_english_one() -> None:
    english, chinese = ((ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh-CN.md"))
    for pattern in (r"^```\w+[^`]*?\n.*?^```$", r"^## ", r"\]\((docs/[^)]+)\)", r'src(?:set)?="(\S+)"'):
        found = re.findall(pattern, english, re.MULTILINE | re.DOTALL)
        assert found
        assert re.findall(pattern, chinese, re.MULTILINE | re.DOTALL) == found, pattern


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_rates_of_the_readme_are_those_that_were_measured(name: str) -> None:
    _, *rows = re.findall(r"^\|(.*) \|$", (ROOT / name).read_text("utf-8"), re.MULTILINE)
    measured = (ROOT / "docs" / "explanation" / "performance" / "absolute.md.inc").read_text("utf-8")
    assert len(rows) == 4
    for client, *rates in (row.strip().split(" | ") for row in rows):
        for work, rate in zip(MEASURED, rates, strict=True):
            assert re.search(rf"^\| {work}.* \| {client}[ .\d]*(uvloop)? \| {rate} \|", measured, re.MULTILINE), rate


def test_an_index_shows_the_readme_without_what_leads_nowhere_there() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    text = index_page.shown(readme)
    assert not re.findall(r"!\[|<picture|\]\((?!https?://)|<!--|中文", text)
    blocks, headings = r"^```\w+[^`]*?\n.*?^```$", r"^#+ .*"
    for pattern in (blocks, headings):
        found = re.findall(pattern, readme, re.MULTILINE | re.DOTALL if pattern is blocks else re.MULTILINE)
        assert len(found) > 3
        assert all(each in text for each in found), pattern
    assert index_page.shown("[a](b.md) [c](https://d.example) ![e](f.png)\n```text\n[g](h)\n```\n") == (
        "a [c](https://d.example) \n```text\n[g](h)\n```\n"
    )


def test_the_readme_is_short_and_its_code_fits_a_narrow_page() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) < 150
    landing = (ROOT / "docs" / "index.md").read_text("utf-8")
    for block in re.findall(r"^```python\n(.*?)^```$", readme + landing, re.MULTILINE | re.DOTALL):
        assert max(map(len, block.splitlines())) <= 88


def test_the_changelog_knows_this_version() -> None:
    versions = re.findall(r"^## \[?([\w.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert nsq_ha.__version__ in versions or versions[0] == "Unreleased"


def test_the_pages_name_no_machine() -> None:
    tracked = subprocess.run(["git", "ls-files", "docs", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
    pages = [ROOT / name for name in tracked.stdout.split() if not name.endswith(".png")] or PAGES
    found = [named(page) for page in pages if re.search(r"/work/|/root/|/home/\w|pypi\.", page.read_text("utf-8"))]
    assert not found
