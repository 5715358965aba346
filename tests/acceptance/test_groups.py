"""Groups of real workers, as processes, on real brokers that stay, go and come back."""

import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import weakincentives
from testkit.servers import Standalone, servers_available
from testkit.waiting import eventually
from tests.services import missing, redis_url
from weakincentives.runtime.group.watchdog import WATCHDOG_EXIT_CODE

__all__ = ["redis_url"]

pytestmark = pytest.mark.slow

MODULE = """
import time
from weakincentives.runtime import LoopGroup, Worker

def handle(body):
    if body == "hang":
        time.sleep(600)
    return body

def make(backend):
    return Worker(backend.mailbox("jobs"), handle)
"""


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'group.db'}"
    return request.getfixturevalue("redis_url")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def group(directory: Path, url: str, *options: str) -> Iterator["subprocess.Popen[str]"]:
    (directory / "shop.py").write_text(textwrap.dedent(MODULE))
    command = [sys.executable, "-m", "weakincentives.cli", "worker", "shop:make", "--url", url]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen([*command, *options], cwd=directory, stderr=log, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def probe(port: int, path: str) -> int:
    """Return the status of a probe, 0 while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_an_idle_group_ends_at_once_in_a_long_poll(tmp_path: Path, url: str) -> None:
    port = free_port()
    with group(tmp_path, url, "--health-port", str(port), "--wait", "20") as process:
        eventually(lambda: probe(port, "/health/ready") == 200, within=120)
        told = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
        assert time.monotonic() - told < 10  # a second is promised


def test_a_handler_that_hangs_is_ended_by_the_watchdog(tmp_path: Path, url: str) -> None:
    with group(tmp_path, url, "--watchdog", "1.5", "--wait", "0.5") as process:
        with weakincentives.connect(url) as backend:
            backend.mailbox("jobs").purge()
            backend.mailbox("jobs").send("hang")
        assert process.wait(timeout=120) == WATCHDOG_EXIT_CODE
    assert "time.sleep(600)" in (tmp_path / "log").read_text()  # where it hung


def test_a_group_outlives_a_restart_of_redis(tmp_path: Path) -> None:
    available = servers_available()
    if not available:
        missing("neither redis-server nor valkey-server was found")
    port = free_port()
    with Standalone(next(iter(available.values())), appendonly="always") as server:
        options = ("--health-port", str(port), "--wait", "1")
        with group(tmp_path, server.url, *options) as process:
            eventually(lambda: probe(port, "/health/ready") == 200, within=120)
            server.kill()
            eventually(lambda: probe(port, "/health/ready") == 503, within=120)
            assert probe(port, "/health/live") == 200
            server.restart()
            eventually(lambda: probe(port, "/health/ready") == 200, within=120)
            assert probe(port, "/health/live") == 200
            with weakincentives.connect(server.url) as backend:
                jobs = backend.mailbox("jobs")
                assert jobs.send_expecting_reply("after").wait(timeout=30) == "after"
            assert process.poll() is None
