"""Spark's own servers as processes of this machine: a standalone cluster, or one for Spark Connect.

They come out of the jars of the installed PySpark, listen on the loopback only and end with the context.
"""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LOOPBACK: Final = "127.0.0.1"
LIMIT: Final = 120.0
"""Seconds until a server must be up."""

_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_CONNECT: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"


def spark_home() -> Path:
    """Return the folder of the PySpark that this interpreter has."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def environment() -> dict[str, str]:
    """Return what Spark's processes need to find our package and this interpreter, and to stay on the loopback."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_NO_DAEMONIZE": "1",
    }


@contextlib.contextmanager
def standalone(folder: Path, workers: int = 2, env: dict[str, str] | None = None) -> Iterator[str]:
    """Run a master and some workers of one core each; gives the master's URL once all have joined.

    Args:
        folder: For logs and work.
        workers: How many.
        env: Environment of the servers. None for :func:`environment`.
    """
    port, page = free_port(), free_port()
    url = f"spark://{LOOPBACK}:{port}"
    with contextlib.ExitStack() as running:
        master = ["--host", LOOPBACK, "--port", str(port), "--webui-port", str(page)]
        started = [running.enter_context(process(folder / "master.log", _MASTER, *master, env=env))]
        for number in range(workers):
            place = ["--host", LOOPBACK, "--webui-port", "0", "--work-dir", str(folder / f"worker-{number}")]
            command = [_WORKER, *place, "--cores", "1", "--memory", "1g", url]
            started.append(running.enter_context(process(folder / f"worker-{number}.log", *command, env=env)))
        until(lambda: alive_workers(page) == workers, started, folder)
        yield url


@contextlib.contextmanager
def connect(folder: Path) -> Iterator[str]:
    """Run a Connect server that executes here; gives its URL."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.host": LOOPBACK,
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    submit = ["org.apache.spark.deploy.SparkSubmit", "--class", _CONNECT, "--master", "local[2,4]", *given]
    with process(folder / "connect.log", *submit, "spark-internal") as server:
        until(lambda: is_open(port), [server], folder)
        yield f"sc://{LOOPBACK}:{port}"


@contextlib.contextmanager
def process(log: Path, *command: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a class of Spark's in a process group of its own, which is killed at the end."""
    with log.open("wb") as output:
        started = subprocess.Popen(
            [str(spark_home() / "bin" / "spark-class"), *command],
            cwd=log.parent,
            env=environment() if env is None else env,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGTERM)
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait(20)


def until(done: Callable[[], bool], started: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Return when ``done``; the logs tell why a server is not up."""
    limit = time.monotonic() + LIMIT
    while not done():
        if time.monotonic() > limit or any(each.poll() is not None for each in started):
            raise AssertionError("\n".join(log.read_text()[-3000:] for log in sorted(folder.glob("*.log"))))
        threading.Event().wait(0.1)


def alive_workers(page: int) -> int:
    """Return how many workers the master counts."""
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{page}/json/", timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (OSError, ValueError):
        return 0


def is_open(port: int) -> bool:
    """Tell whether somebody listens there."""
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 1):
        return True
    return False


def free_port() -> int:
    """Return a port that nobody has at the moment."""
    with socket.create_server((LOOPBACK, 0)) as found:
        port: int = found.getsockname()[1]
        return port
