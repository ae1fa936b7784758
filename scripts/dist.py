"""Build wheel and sdist, and install them into empty environments with the lowest and the highest allowed versions.

``make dist`` calls this with the Python of ``.venv-release``, which has the locked build tools, uv and twine. Each
environment publishes and consumes a message through an embedded cluster, with warnings as errors for the highest
versions. The exit code is 1 if anything failed. What was built stays in ``dist``.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
DIST = ROOT / "dist"
VERSIONS = ("3.11", "3.12", "3.13")
RESOLUTIONS = ("lowest-direct", "highest")

SMOKE = """
import asyncio
from nsq_ha import Consumer, Producer, __version__
from nsq_ha.devcluster import DevCluster

async def main(lookupd):
    async with Consumer("orders", "smoke", lookupd=lookupd) as consumer, Producer(lookupd=lookupd) as producer:
        receipt = await producer.publish("orders", b"paid", key="order-1", trace_id=7)
        async with asyncio.timeout(30), await anext(consumer) as message:
            assert (message.body, message.trace_id, receipt.offset) == (b"paid", 7, 0), (message, receipt)

with DevCluster() as cluster:
    cluster.create_topic("orders", 2, ordered=True)
    asyncio.run(main(cluster.lookupd))
print("nsq_ha", __version__, "works")
"""


def run(*command: object, **more: str) -> None:
    """Run a command; raise if it fails."""
    subprocess.run([str(word) for word in command], cwd=ROOT, env=os.environ | more, check=True)


def python_of(version: str) -> str | None:
    """Return the interpreter of a version. None if it is not installed."""
    found = subprocess.run(
        [ROOT / "scripts" / "find_python.sh", version], capture_output=True, text=True, check=False
    ).stdout.strip()
    return found or None


def build() -> list[Path]:
    """Build both files from a clean folder, and check what an index would show of them."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", DIST)
    files = sorted(DIST.iterdir())
    run(BIN / "twine", "check", "--strict", *files)
    return files


def try_out(file: Path, python: str, resolution: str) -> None:
    """Install one file into an empty environment, and use it there."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "venv"
        run(BIN / "uv", "venv", "--quiet", "--python", python, environment)
        inside = environment / "bin" / "python"
        wanted = f"nsq_ha[cluster,cli] @ {file.as_uri()}"
        run(BIN / "uv", "pip", "install", "--quiet", "--python", inside, "--resolution", resolution, wanted)
        warnings = ("-W", "error") if resolution == "highest" else ()
        run(inside, *warnings, "-c", SMOKE)
        run(environment / "bin" / "nsq-ha", "--version")


def main() -> int:
    """Build, then try each file on each Python that is installed."""
    failed: list[str] = []
    files = build()
    for version in VERSIONS:
        python = python_of(version)
        if python is None:
            print(f"Python {version}: not installed, skipped")
            continue
        for file in files:
            for resolution in RESOLUTIONS:
                name = f"Python {version}, {file.name}, {resolution} versions"
                print(f"\n##### {name}", flush=True)
                try:
                    try_out(file, python, resolution)
                except subprocess.CalledProcessError as error:
                    print(f"failed: {error}")
                    failed.append(name)
    print(f"\nfailed: {'; '.join(failed) or 'none'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
