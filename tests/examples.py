"""Reads the examples out of Markdown pages and runs them.

What a page says about a block stands behind the language on its fence, where readers do not see it::

    ```python until="got it"

    output              a text block: what the block before it prints
    until="text"        stop it once it has printed this (it runs for ever)
    ctrl-c="text"       press Ctrl-C once it has printed this
    background="text"   go on with the page once it has printed this; it runs on to the page's end
    instead             stop the block in the background before this one, as the reader does
    file="name.py"      save it under this name; pytest runs the files ``test_*.py``, together at the page's end
    run                 run this file, or the commands of this console block, as processes
    spark               with ``run``: in the one process that has Spark, which all pages share
    library="name"      code for another library, only compiled
    skip="reason"       do not run it, for this reason

The Python blocks of a page run in the page's order. One that calls ``asyncio.run``
is a program and runs on its own, as a reader would run it; others have the names
that the blocks before them have left. ``await`` may stand at their top. Where a page says
to paste them into ``python -m asyncio``, they must not leave a value that it would print.
An output may leave out what differs from run to run by ``...``.
"""

import ast
import asyncio
import contextlib
import contextvars
import inspect
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Final

from nsq_ha.devcluster import DevCluster
from tests.spark_host import SparkHost
from tests.support import programs

ROOT: Final = Path(__file__).parents[1]
ADDRESS: Final = "127.0.0.1:4161"
"""Stands for the cluster's nsqlookupd in all pages."""
LIMIT: Final = 30.0
"""Seconds for one block."""
PROCESS_LIMIT: Final = 120.0
"""The same for a program of its own."""
SETTINGS: Final = frozenset({"until", "ctrl-c", "background", "file", "library", "skip", "run", "spark", "instead"})

_FENCE: Final = re.compile(r"(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[^`\s]*)(?P<said>[^`]*)$")


@dataclass(slots=True)
class Example:
    """One block.

    Attributes:
        page: The file.
        line: Where the block begins, from 1.
        language: As the fence says.
        code: Its text.
        settings: As the fence says.
        output: What it prints. None when the page does not say.
    """

    page: Path
    line: int
    language: str
    code: str
    settings: dict[str, str] = field(default_factory=dict)
    output: str | None = None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def examples_of(page: Path) -> list[Example]:
    """Return the blocks of a page in their order.

    Raises:
        ValueError: A block does not end, or its settings make no sense.
    """
    found: list[Example] = []
    lines = page.read_text("utf-8").splitlines()
    index = 0
    while index < len(lines):
        start, opening = index, _FENCE.fullmatch(lines[index])
        index += 1
        if opening is None:
            continue
        while index < len(lines) and not lines[index].strip().startswith(opening["fence"]):
            index += 1
        if index == len(lines):
            raise ValueError(f"{page}:{start + 1}: the block does not end")
        code = "\n".join(text[len(opening["indent"]) :] for text in lines[start + 1 : index]) + "\n"
        index += 1
        _take(found, Example(page, start + 1, opening["language"], code), opening["said"])
    return found


def _take(found: list[Example], example: Example, said: str) -> None:
    if said.strip() == "output":
        if not found:
            raise ValueError(f"{example}: an output of no block")
        found[-1].output = example.code
        return
    if not example.language.startswith("{"):  # behind a directive stand its arguments
        for word in shlex.split(said):
            name, _, value = word.partition("=")
            if name not in SETTINGS:
                raise ValueError(f"{example}: unknown setting {name!r}")
            example.settings[name] = value
    found.append(example)


_QUIET: Final = ["-o", "asyncio_default_fixture_loop_scope=function"]
"""Without it, pytest-asyncio warns in folders without a configuration."""
_SETTING: Final = re.compile(r"\w+=.*")
"""A variable before a command."""


def looks_like(printed: str, expected: str) -> bool:
    """Tell whether ``printed`` is ``expected``, in which ``...`` stands for anything."""
    pattern = ".*?".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


class Printed:
    """What a block prints, and which blocks wait for a part of it."""

    def __init__(self) -> None:
        self.text = ""
        self._changed = asyncio.Event()

    def add(self, text: str) -> None:
        """Note what was printed."""
        self.text += text
        self._changed.set()

    async def wait_for(self, text: str) -> None:
        """Return once ``text`` was printed."""
        while text not in self.text:
            self._changed.clear()
            await self._changed.wait()


_printing: Final[contextvars.ContextVar[Printed]] = contextvars.ContextVar("printing")


def _print(*values: object, sep: str = " ", end: str = "\n") -> None:
    """Take the place of ``print``: a block's output is what its task and the tasks that this makes print."""
    _printing.get().add(sep.join(map(str, values)) + end)


@dataclass(slots=True)
class Running:
    """A block that runs on in the background."""

    example: Example
    printed: Printed
    task: asyncio.Task[None]


class PageRun:
    """Runs the blocks of one page, one after another."""

    def __init__(
        self, cluster: DevCluster, folder: Path, spark: SparkHost, places: Mapping[str, str] | None = None
    ) -> None:
        self._cluster = cluster
        self._places = places or {}
        self._folder = folder
        self._spark = spark
        self._names: dict[str, Any] = {"__name__": "__main__", "print": _print}
        self._background: list[Running] = []
        self._tests: list[Example] = []

    async def run(self, examples: Sequence[Example]) -> None:
        """Run the page.

        Raises:
            AssertionError: A block failed, printed something else or took too long; names it.
        """
        try:
            for example in examples:
                if {"skip", "library"} & example.settings.keys():
                    continue
                if "file" in example.settings:
                    await asyncio.to_thread(self._save, example)
                elif example.language == "python":
                    await self._run(example)
                elif example.language == "console" and "run" in example.settings:
                    await asyncio.to_thread(self._console, example)
            if self._tests:
                await asyncio.to_thread(self._run_tests)
            for running in self._background:
                _raise_if_failed(running)
                if "until" in running.example.settings:
                    await self._finish(running)
        finally:
            for running in self._background:
                running.task.cancel()
                await asyncio.wait({running.task})

    def _here(self, code: str) -> str:
        """Return ``code`` with the addresses of the clusters."""
        code = code.replace(ADDRESS, self._cluster.lookupd[0].removeprefix("http://"))
        for written, address in self._places.items():
            code = code.replace(written, address)
        return code

    async def _run(self, example: Example) -> None:
        printed = Printed()
        alone = {"__name__": "__main__", "print": _print}
        names = alone if "asyncio.run(" in example.code else self._names
        context = contextvars.copy_context()
        context.run(_printing.set, printed)
        task = asyncio.create_task(self._execute(example, names), context=context)
        running = Running(example, printed, task)
        if "instead" in example.settings:
            await self._finish(self._background.pop())
        if "background" in example.settings:
            self._background.append(running)
            await self._printed(running, example.settings["background"])
        else:
            if "ctrl-c" in example.settings:
                await self._printed(running, example.settings["ctrl-c"])
                os.kill(os.getpid(), signal.SIGINT)
            await self._finish(running)

    async def _execute(self, example: Example, names: dict[str, Any]) -> None:
        tree = ast.parse(self._here(example.code))
        tree.body = [_awaited(statement) for statement in tree.body]
        if "python -m asyncio" in example.page.read_text("utf-8"):
            ast.fix_missing_locations(_Echo().visit(tree))
            names["_echo"] = _echo
        ast.increment_lineno(tree, example.line)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        made = eval(compile(tree, str(example.page), "exec", flags=flags), names)  # noqa: S307 - our own pages
        if inspect.isawaitable(made):
            await made

    async def _printed(self, running: Running, text: str) -> None:
        waiting = asyncio.create_task(running.printed.wait_for(text))
        try:
            await asyncio.wait({waiting, running.task}, timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
            if text not in running.printed.text:
                _raise_if_failed(running)
                raise AssertionError(f"{running.example} did not print {text!r} but:\n{running.printed.text}")
        finally:
            waiting.cancel()

    async def _finish(self, running: Running) -> None:
        example = running.example
        if "until" in example.settings:
            await self._printed(running, example.settings["until"])
            running.task.cancel()
        await asyncio.wait({running.task}, timeout=LIMIT)
        _raise_if_failed(running)
        assert running.task.done(), f"{example} takes longer than {LIMIT} s"
        if example.output is not None:
            expected, text = self._here(example.output), running.printed.text
            assert looks_like(text, expected), f"{example} printed:\n{text}"

    def _save(self, example: Example) -> None:
        path = self._folder / example.settings["file"]
        path.write_text(self._here(example.code), "utf-8")
        if path.name.startswith("test_"):
            self._tests.append(example)
        elif "run" in example.settings:
            run = self._spark_program if "spark" in example.settings else self._program
            printed = run(example, path.name)
            assert example.output is None or looks_like(printed, example.output), f"{example} printed:\n{printed}"

    def _run_tests(self) -> None:
        """Run them in one process: most of the time of a single one is the start of pytest."""
        names = [each.settings["file"] for each in self._tests]
        self._program(self._tests[-1], "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *_QUIET, *names)

    def _program(self, example: Example, *arguments: str) -> str:
        ran = (
            self._shell(shlex.join([sys.executable, *arguments]))
            if arguments[0] == "-m"
            else self._forked(programs.FILE, *arguments)
        )
        assert ran.returncode == 0, f"{example}:\n{ran.stdout}{ran.stderr}"
        return ran.stdout

    def _spark_program(self, example: Example, *arguments: str) -> str:
        lookupd = {"NSQ_HA_LOOKUPD": os.environ["NSQ_HA_LOOKUPD"]}
        code, printed = self._spark.run(arguments, self._folder, lookupd)
        assert code == 0, f"{example}:\n{printed}"
        return printed

    def _spark_command(self, example: Example, command: str) -> str:
        """Run ``python FILE ...`` or ``nsq-ha ...`` where Spark is."""
        program, *arguments = shlex.split(command)
        return self._spark_program(example, *(["-m", "nsq_ha.cli"] if program == "nsq-ha" else []), *arguments)

    def _console(self, example: Example) -> None:
        for command, expected in commands_of(example):
            if "spark" in example.settings:
                given = self._spark_command(example, self._here(command))
                assert not expected or looks_like(given, self._here(expected)), f"{example}: {command}\n{given}"
                continue
            ran = self._command(self._here(command))
            assert ran.returncode == 0, f"{example}: {command}\n{ran.stdout}{ran.stderr}"
            assert not expected or looks_like(ran.stdout, self._here(expected)), f"{example}: {command}\n{ran.stdout}"

    def _command(self, command: str) -> CompletedProcess[str]:
        """Run a command: in a process that is forked if it needs no shell."""
        words = shlex.split(command)
        program, *arguments = itertools.dropwhile(_SETTING.fullmatch, words)
        if re.search(r"[|<>&]", command) or program not in ("nsq-ha", "python"):
            return self._shell(command)
        env = os.environ | dict(word.split("=", 1) for word in itertools.takewhile(_SETTING.fullmatch, words))
        return self._forked(programs.FILE if program == "python" else programs.NSQ_HA, *arguments, env=env)

    def _forked(self, text: str, *arguments: str, env: Mapping[str, str] | None = None) -> CompletedProcess[str]:
        return programs.run(programs.COMMAND_LINE, text, *arguments, env=env, folder=self._folder)

    def _shell(self, command: str) -> CompletedProcess[str]:
        return subprocess.run(  # noqa: S602 - our own pages; they pipe
            command,
            shell=True,
            cwd=self._folder,
            env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROCESS_LIMIT,
            check=False,
        )


def _awaited(statement: ast.stmt) -> ast.stmt:
    """Turn ``asyncio.run(main())`` into ``await main()``; leave all else."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="run"), args=[program])):
            return ast.copy_location(ast.Expr(ast.copy_location(ast.Await(program), statement)), statement)
        case _:
            return statement


class _Echo(ast.NodeTransformer):
    """Finds what an interactive Python would print: the value of each expression outside functions."""

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Expr):
            return ast.Expr(ast.Call(ast.Name("_echo", ast.Load()), [node.value], []))
        return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else self.generic_visit(node)


def _echo(value: object) -> None:
    assert value is None, f"Python prints {value!r}, which the page does not show: assign it to a name"


def _raise_if_failed(running: Running) -> None:
    with contextlib.suppress(asyncio.CancelledError, asyncio.InvalidStateError):
        if (error := running.task.exception()) is not None:
            raise AssertionError(f"{running.example} failed: {error!r}") from error


def commands_of(example: Example) -> Iterator[tuple[str, str]]:
    """Return the commands of a console block (they follow ``$``), each with what it prints."""
    text = example.code.replace("\\\n", " ")
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def programs_of(command: str) -> Iterator[list[str]]:
    """Return the words of each program of a pipe."""
    for words in _piped(shlex.split(command, comments=True)):
        yield list(itertools.dropwhile(_SETTING.fullmatch, words))


def _piped(words: list[str]) -> Iterator[list[str]]:
    program: list[str] = []
    for word in words:
        if word in ("|", "&&"):
            yield program
            program = []
        elif word in (">", "<", "&"):
            break
        else:
            program.append(word)
    yield program
