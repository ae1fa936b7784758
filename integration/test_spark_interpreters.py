"""The documented ways to start Spark, as documented, where no Python of ``PATH`` has what the format needs."""

import asyncio
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from typing import Final

import pytest

from integration.cluster import ClusterUnderTest
from integration.jobs import numbered_topic
from integration.spark_servers import LOOPBACK, ROOT, spark_home, standalone

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PAGES: Final = ROOT / "docs" / "how-to"
COUNT: Final = 500
LIMIT: Final = 400.0
BARE: Final = "#!/bin/sh\necho 'this Python has nothing of nsq_ha' >&2\nexit 1\n"


@pytest.fixture
async def stocked(cluster: ClusterUnderTest) -> str:
    return await numbered_topic(cluster, COUNT)


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """An environment without any variable of PySpark's, whose ``python`` and ``python3`` are of no use."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("python", "python3"):
        (programs / name).write_text(BARE)
        (programs / name).chmod(0o755)
    java = shutil.which("java")
    assert java is not None
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME", "LANG") if name in os.environ}
    return {**kept, "PATH": f"{programs}:{Path(java).parent}:/usr/bin:/bin", "SPARK_LOCAL_IP": LOOPBACK}


def block(page: str, kind: str, holding: str) -> str:
    """Return the one block of a page that holds some text."""
    found = re.findall(rf"^```{kind}\n(.*?)^```", (PAGES / page).read_text(), re.DOTALL | re.MULTILINE)
    (one,) = [each for each in found if holding in each]
    return str(one)


@pytest.mark.slow
async def test_a_session_of_ones_own_in_an_environment_that_is_not_activated(
    cluster: ClusterUnderTest, stocked: str, elsewhere: dict[str, str], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    lookupd = ",".join(cluster.lookupd)
    read = f'own_session().read.format("nsq").options(lookupd={lookupd!r}, topic={stocked!r}).load().count()'
    program.write_text(f"{block('spark.md', 'python', 'def own_session')}\n\nprint({read})\n")
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=elsewhere,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ran.stdout.split()[-1:] == [str(COUNT)], ran.stderr[-6000:]


def packages() -> Path:
    """Return where this interpreter has its packages."""
    return next(path for path in map(Path, sys.path) if (path / "pyspark").is_dir())


def packed(folder: Path) -> None:
    """Make ``environment`` and its archive, small: it borrows the packages of this interpreter."""
    venv.create(folder / "environment", symlinks=True)
    (place,) = (folder / "environment" / "lib").glob("python3*/site-packages")
    (place / "borrowed.pth").write_text(f"{ROOT}\n{packages()}\n")
    with tarfile.open(folder / "environment.tar.gz", "w:gz") as archive:
        for each in (folder / "environment").iterdir():
            archive.add(each, each.name)
    # What pip puts there beside an environment's Python.
    for path in Path(sys.executable).parent.glob("*spark*"):
        (folder / "environment" / "bin" / path.name).symlink_to(path)


def with_pyarrow(folder: Path) -> None:
    """Make ``worker``, an environment with nothing but pyarrow and numpy."""
    venv.create(folder / "worker", symlinks=True)
    (place,) = (folder / "worker" / "lib").glob("python3*/site-packages")
    for pattern in ("pyarrow*", "numpy*"):
        for path in packages().glob(pattern):
            (place / path.name).symlink_to(path)


def installed(folder: Path) -> None:
    """Make ``packages`` as ``pip install --target`` does, out of what is installed here."""
    target = folder / "packages"
    shutil.copytree(ROOT / "nsq_ha", target / "nsq_ha", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "pyspark_nsq", target / "pyspark_nsq")
    for name in needed("nsq_ha"):
        for file in importlib.metadata.files(name) or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.locate(), target / file)


def needed(name: str) -> set[str]:
    """Return the distributions that one needs without an extra, and those that they need."""
    asked = [each for each in importlib.metadata.requires(name) or () if "extra ==" not in each]
    found = {match.group() for each in asked if (match := re.match(r"[\w.-]+", each))}
    # Some are for other versions of Python.
    names = {each for each in found if any(importlib.metadata.distributions(name=each))}
    return names.union(*(needed(each) for each in names))


def program_of(cluster: ClusterUnderTest, topic: str) -> str:
    """Return the page's program, for this cluster and topic."""
    program = block("spark-cluster.md", "python", 'appName("pipeline")')
    for documented, real in (
        ("lookup-1.example:4161", ",".join(cluster.lookupd)),
        ('topic="orders"', f'topic="{topic}"'),
    ):
        assert documented in program
        program = program.replace(documented, real)
    return f"{program}\n\nmain()\n"


@pytest.mark.slow
@pytest.mark.parametrize("holding", ["--archives environment", "--archives packages"])
async def test_the_lines_that_submit_to_a_cluster(
    cluster: ClusterUnderTest, stocked: str, elsewhere: dict[str, str], tmp_path: Path, holding: str
) -> None:
    folder = tmp_path / "submitted"
    folder.mkdir()
    (folder / "pipeline.py").write_text(program_of(cluster, stocked))
    await asyncio.to_thread(packed, folder)
    lines = [line.removeprefix("$ ") for line in block("spark-cluster.md", "console", holding).splitlines()]
    if "packages" in holding:
        await asyncio.to_thread(with_pyarrow, folder)
        await asyncio.to_thread(installed, folder)
        assert lines[0] == "pip install --target packages /path/to/the/sources"
        # This Spark brings its own copy of pyspark, as one that was unpacked does.
        lines[0] = f"export PYSPARK_PYTHON={folder / 'worker' / 'bin' / 'python'} SPARK_HOME={spark_home()}"
        lines[1] = lines[1].replace("python ", f"{sys.executable} ", 1)

    def submit() -> subprocess.CompletedProcess[str]:
        servers = {**elsewhere, "SPARK_HOME": str(spark_home()), "SPARK_NO_DAEMONIZE": "1"}
        with standalone(tmp_path, 1, servers) as master:
            script = "\n".join(lines).replace("spark://master.example:7077", shlex.quote(master))
            # As in the activated environment of the step before; what it changes is PATH.
            path = f"{elsewhere['PATH']}:{folder / 'environment' / 'bin'}"
            return subprocess.run(
                ["/bin/bash", "-ec", script],
                cwd=folder,
                env={**elsewhere, "PATH": path},
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )

    ran = await asyncio.to_thread(submit)
    assert f"|        0|  {COUNT // 2}|" in ran.stdout, ran.stderr[-8000:]
    assert f"|        1|  {COUNT // 2}|" in ran.stdout
