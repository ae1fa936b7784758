"""How the pages are made: where code breaks, how docstrings are read, and which links are dead."""

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import click
import pytest

from docs._ext import breaks, commands, figures, links, reference
from nsq_ha.cli.app import app
from nsq_ha.policy import timing


def broken(word: str) -> list[str]:
    shown = breaks.with_breaks(f'<span class="pre">{word}</span>')
    return shown.removeprefix('<span class="pre">').removesuffix("</span>").split("<wbr>")


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("max_in_flight_bytes", ["max_in_flight_bytes"]),
        ("startingOffsetsByTimestamp", ["starting", "Offsets", "By", "Timestamp"]),
        ("test_a.py::test_b_and_more_words", ["test_", "a.", "py::", "test_", "b_", "and_", "more_", "words"]),
        ("--output-buffer-timeout-and", ["--output-", "buffer-", "timeout-", "and"]),
        ("run(...,&#160;handlers=&quot;True&quot;)", ["run(...,", "&#160;handlers=", "&quot;True&quot;)"]),
    ],
)
def test_long_words_of_code_break_behind_punctuation_only(word: str, parts: list[str]) -> None:
    assert broken(word) == parts


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="in/b.html#there">1</a><a href="#here">2</a><a href="#no">3</a>'
    )
    (tmp_path / "in" / "b.html").write_text(
        '<p id="there"><a href="../a.html">1</a><a href="../gone.html">2</a><a href="https://example.org/x">3</a>'
    )
    (tmp_path / "old.html").write_text('<a href="gone.html">of a page that is not built any more</a>')
    assert list(links.dead_links(tmp_path, ["a", "in/b"])) == [("a.html", "#no"), ("in/b.html", "../gone.html")]


def test_the_pages_are_built_with_what_is_in_their_environment_alone() -> None:
    """That of the gate has much more."""
    root = Path(__file__).parents[1]
    there = set(re.findall(r"^([\w-]+)==", (root / "requirements" / "docs.txt").read_text(), re.MULTILINE))
    missing = [
        module
        for module, names in packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", name).lower() for name in names} & {*there, "setuptools", "nsq-ha"}
    ]
    assert {"numpy", "pyarrow", "pyspark", "pytest"} <= {*missing}
    program = (
        "import importlib; from importlib.machinery import PathFinder; find = PathFinder.find_spec\n"
        f"PathFinder.find_spec = lambda name, *more: None if name in {missing!r} else find(name, *more)\n"
        "from docs import conf\n"
        "for name in conf.extensions: importlib.import_module(name)"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_the_options_of_the_cluster_are_in_one_table_and_left_out_of_commands() -> None:
    shown = commands.shared_table()
    assert all(f"``{flag} " in shown for flag in ("--lookupd", "--tls-ca", "--cert", "--auth-secret-file"))

    command = app.get_command(click.Context(app), "pub")
    assert command is not None
    lines: list[str] = []
    for option in (each for each in command.params if isinstance(each, click.Option)):
        lines += [f".. option:: {', '.join(option.opts)}", "", "    What it is.", ""]
    commands.leave_out_shared(None, click.Context(command), lines)  # type: ignore[arg-type]  # unused
    kept = "\n".join(lines)
    assert "--lookupd" not in kept
    assert "--tls-key" not in kept
    assert ".. option:: --key-field" in kept
    assert f"<{commands.LABEL}>" in kept


def test_what_may_be_copied_from_the_options_of_spark_is_code() -> None:
    table = reference.spark_options_table()
    assert '``{"orders": {"0": 0}}``' in table
    assert "``--max-msg-timeout``" in table
    assert '{"orders"' not in re.sub(r"``.*?``", "", table)


def test_every_option_of_a_command_says_what_it_is_for() -> None:
    def silent(command: click.Command | None, name: str) -> list[str]:
        assert command is not None
        found = [
            f"{name} {option.opts}"
            for option in command.params
            if isinstance(option, click.Option) and not (option.help or option.hidden)
        ]
        if isinstance(command, click.Group):
            context = click.Context(command)
            for word in command.list_commands(context):
                found += silent(command.get_command(context, word), f"{name} {word}")
        return found

    assert silent(app, "nsq-ha") == []


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("policy.timing.QUICK_GAP in s", f"{timing.QUICK_GAP:g} s"),
        ("heartbeat_interval in s", "2 s"),
        ("policy.liveness.SILENT_INTERVALS *\nheartbeat_interval\nin s", "4 s"),
        ("protocol.server.identify.HA_LIMITS.max_body_bytes in bytes", "5 MiB"),
        ("10000 / 60 in minutes", "167 minutes"),
        ("10 / 3 - 1 + 1", "3.33"),
        ("10000 * 2", "20,000"),
    ],
)
def test_a_figure_of_a_page_is_that_of_the_code(written: str, shown: str) -> None:
    assert figures.figure(written) == shown


@pytest.mark.parametrize(
    "written",
    [
        "policy.timing.NOT_THERE in s",
        "nowhere.GAP",
        "no_option",
        "tls",
        "'5'",
        "msg_timeout",
        "-1",
    ],
)
def test_a_figure_that_the_code_does_not_have_ends_the_build(written: str) -> None:
    with pytest.raises(LookupError):
        figures.figure(written)


def test_each_command_has_a_page() -> None:
    pages = Path(__file__).parents[1] / "docs" / "reference" / "cli"
    assert {page.stem for page in pages.glob("*.rst")} == set(app.list_commands(click.Context(app)))
