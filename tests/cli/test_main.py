import re
import subprocess
import sys

import pytest

from nsq_ha._version import __version__
from tests.cli.conftest import Invoke
from tests.support.programs import COMMAND_LINE, NSQ_HA, run

COMMANDS = (
    "dev",
    "topic",
    "channel",
    "node",
    "pub",
    "tail",
    "lookup",
    "stat",
    "top",
    "doctor",
    "copy",
    "dead-letters",
    "trace",
    "dashboard",
)

WITHOUT = """
import sys
for module in {missing!r}:
    sys.modules[module] = None
"""


INTERRUPTED = """
import sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
from nsq_ha.cli.__main__ import main
sys.argv = ["nsq-ha", *{arguments!r}]
main()
"""

LOADED = """
import sys
from nsq_ha.cli.__main__ import main
sys.argv = ["nsq-ha", *{arguments!r}]
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def loaded_by(*arguments: str) -> set[str]:
    """Return the modules that a run of the command line loads."""
    code = LOADED.format(arguments=list(arguments))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return set(ran.stderr.split())


def without(missing: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own that lacks some modules."""
    return run(COMMAND_LINE, WITHOUT.format(missing=missing) + NSQ_HA, *arguments)


@pytest.mark.parametrize(
    ("missing", "line"),
    [
        (["click"], "nsq-ha needs click: install nsq_ha[cli]\n"),
        (["click", "rich"], "nsq-ha needs click and rich: install nsq_ha[cli]\n"),
    ],
)
def test_without_its_extra_it_prints_what_to_install(missing: list[str], line: str) -> None:
    ran = without(missing, "--help")
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", line)


@pytest.mark.few("dev-missing0", "dashboard-missing1")
@pytest.mark.parametrize(
    ("command", "missing"),
    [("dev", ["starlette", "uvicorn"]), ("dashboard", ["starlette", "uvicorn"]), ("dev", ["re2"])],
)
def test_without_the_cluster_extra_the_embedded_cluster_says_what_to_install(command: str, missing: list[str]) -> None:
    ran = without(missing, command)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("Error: ")
    assert "install nsq_ha[" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_it_runs_as_a_module() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "nsq_ha.cli", "--version"], capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout == f"nsq-ha, version {__version__}\n"


def test_help_names_every_command(invoke: Invoke) -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    assert all(f"\n  {command} " in result.stdout for command in COMMANDS)
    assert "Exit codes" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("lookup",),
        ("lookup", "no/topic"),
        ("lookup", "t", "--lookupd", "http://a:b"),
        ("tail", "t", "--channel", "a b"),
        ("tail", "t", "-n", "0"),
        ("tail", "t", "--from", "yesterday"),
        ("tail", "t", "--from", "-1"),
        ("copy", "t", "u", "--rate", "0"),
        ("copy", "t", "u", "--rate", "0.1", "--idle", "10"),
        ("dead-letters", "show", "t"),
        ("tail", "t", "--from", "9999-12-31T23:59:59-14:00"),
        ("tail", "t", "--from", "2263-01-01"),
        ("tail", "t", "--idle", "nan"),
        ("trace", "report", __file__, "--grace", "nan"),
        ("topic", "create", "t", "--timeout", "-1"),
        ("pub", "t", "--header", "novalue"),
        ("pub", "t", "--key", "a", "--key-field", "b"),
        ("topic", "create", "t", "--partitions", "256"),
        ("dev", "--topic", "a:0"),
    ],
)
def test_wrong_usage_ends_with_2(invoke: Invoke, arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).exit_code == 2


def test_the_program_starts_with_what_python_has_loaded() -> None:
    """Before ``main`` runs, Ctrl-C ends in a traceback; each further module makes that time longer."""
    code = (
        "import sys; before = set(sys.modules); import nsq_ha.cli.__main__; print(*sorted(set(sys.modules) - before))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert [name for name in found.stdout.split() if not name.startswith("nsq_ha")] in ([], ["__future__"])


def test_the_second_v_shows_each_frame(invoke: Invoke, topic: str) -> None:
    assert "wire" not in invoke("-v", "pub", topic, stdin="one").stderr
    result = invoke("-vv", "pub", topic, stdin="two\x1b[31m")
    assert re.search(
        rf"^debug: wire: c\d+ 127\.0\.0\.1:\d+ > PUB {topic} \d and 12 bytes$", result.stderr, re.MULTILINE
    )
    assert result.stderr.count("< response b'OK'") == 1


def test_the_version_loads_no_command() -> None:
    loaded = loaded_by("--version")
    assert {"nsq_ha.cli.app", "click"} <= loaded
    assert loaded.isdisjoint({"asyncio", "logging", "ssl", "httpx", "rich", "nsq_ha.options.config"})
    assert loaded.isdisjoint(f"nsq_ha.cli.{name}" for name in ("topic", "cluster", "running", "copy"))


@pytest.mark.few(1)
@pytest.mark.parametrize(("module", "arguments"), [("app", ["--version"]), ("cluster", ["topic", "list"])])
def test_ctrl_c_while_it_loads_ends_with_130(module: str, arguments: list[str]) -> None:
    code = INTERRUPTED.format(module=f"nsq_ha.cli.{module}", arguments=arguments)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_a_token_is_shown_when_the_options_are_right(invoke: Invoke) -> None:
    refused = invoke("dashboard", "--admin", "--port", "0", "--decode", "math:pi")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == "Error: 'math:pi' is no function\n"
