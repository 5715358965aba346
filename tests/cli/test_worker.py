"""``wink worker``: a real process in the foreground, ended by real signals."""

import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.waiting import eventually

import weakincentives
from weakincentives.cli.app import run
from weakincentives.cli.worker import UNFINISHED

MODULE = """
import time
from pathlib import Path

from weakincentives.runtime import InMemoryMailbox, LoopGroup, Worker

def handle(body):
    Path(f"began-{body}").touch()
    if body == "slow":
        time.sleep(30)
    return None

def make(backend):
    return Worker(backend.mailbox("jobs"), handle)

def crash(backend):
    class Broken:
        running = False
        heartbeat = make(backend).heartbeat
        def run(self, **options):
            raise RuntimeError("no work today")
        def shutdown(self, *, timeout=30.0):
            return True
    return Broken()

ready = Worker(InMemoryMailbox("elsewhere"), handle)
group = LoopGroup([Worker(InMemoryMailbox("in-a-group"), handle)])
nothing = 42
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(textwrap.dedent(MODULE))
    return f"sqlite:///{tmp_path / 'worker.db'}"


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    processes = []

    def start_one(target: str, *options: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "weakincentives.cli", "worker", target, "--url", url]
        process = subprocess.Popen(
            [*command, *options], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process

    yield start_one
    for process in processes:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_it_serves_and_drains_on_sigterm(tmp_path: Path, url: str, start: Start) -> None:
    process = start("shop:make")
    with weakincentives.connect(url) as backend:
        jobs = backend.mailbox("jobs")
        jobs.send("one")
        eventually(lambda: jobs.approximate_count() == 0, within=30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0


def test_what_is_unfinished_at_the_deadline_is_given_back(
    tmp_path: Path, url: str, start: Start
) -> None:
    process = start("shop:make", "--shutdown-timeout", "0.2")
    with weakincentives.connect(url) as backend:
        jobs = backend.mailbox("jobs")
        jobs.send("slow")
        eventually((tmp_path / "began-slow").exists, within=30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == UNFINISHED
        (message,) = jobs.receive(wait_time_seconds=10)
        assert message.nack_count == 1


def test_a_second_signal_ends_at_once(tmp_path: Path, url: str, start: Start) -> None:
    process = start("shop:make")
    with weakincentives.connect(url) as backend:
        backend.mailbox("jobs").send("slow")
    eventually((tmp_path / "began-slow").exists, within=30)
    process.send_signal(signal.SIGTERM)
    # Until the second handler is in place a second signal would count as the first.
    eventually(lambda: process.poll() is not None or _signalled(process), within=30)
    assert process.wait(timeout=10) == -signal.SIGTERM


def _signalled(process: "subprocess.Popen[str]") -> bool:
    process.send_signal(signal.SIGTERM)
    return process.poll() is not None


def test_a_signal_while_the_loop_is_made_ends_it_cleanly(tmp_path: Path, start: Start) -> None:
    (tmp_path / "slow_to_make.py").write_text(
        "import time\nfrom pathlib import Path\nimport shop\n"
        "def make(backend):\n"
        "    Path('making').touch()\n"
        "    time.sleep(1)\n"
        "    return shop.make(backend)\n"
    )
    process = start("slow_to_make:make")
    eventually((tmp_path / "making").exists, within=30)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0


def test_a_crashed_loop_ends_the_process_with_its_error(start: Start) -> None:
    process = start("shop:crash")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "no work today" in err


def test_it_serves_probes(tmp_path: Path, start: Start) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start("shop:make", "--health-port", str(port))

    def ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as got:
                return got.status == 200
        except OSError:
            return False

    eventually(ready, within=30)


@pytest.mark.parametrize("target", ["shop:ready", "shop:group"])
def test_loops_that_exist_are_run_as_they_are(start: Start, target: str) -> None:
    process = start(target, "--wait", "0.1")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("shop", "must be MODULE:ATTRIBUTE"),
        ("nosuchmodule:x", "no module 'nosuchmodule'"),
        ("shop:missing", "has no attribute 'missing'"),
        ("shop:nothing", "is a int; it must be a loop"),
    ],
)
def test_a_wrong_target_is_one_line(
    tmp_path: Path,
    url: str,
    target: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(["worker", target, "--url", url]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err
