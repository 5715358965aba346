"""``wink worker``: a real process in the foreground, ended by real signals."""

import json
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import weakincentives
from testkit.waiting import eventually
from weakincentives.cli.app import run
from weakincentives.cli.worker import UNFINISHED
from weakincentives.runtime.group.signals import SAME_SIGNAL_SECONDS

MODULE = """
import time
from pathlib import Path

from weakincentives.runtime import InMemoryMailbox, LoopGroup, Worker, current_lease

def handle(body):
    Path(f"began-{body}").touch()
    if body == "fail":
        raise ValueError("one\\ntwo")
    if body == "slow":
        time.sleep(30)
    while body == "until cut off" and not current_lease().lost:
        time.sleep(0.01)
    while body.startswith("until let go") and not Path(f"go-{body}").exists():
        time.sleep(0.01)
    return None

def make(backend):
    return Worker(backend.mailbox("jobs"), handle)

def make_group(backend):
    return LoopGroup([make(backend)])

def make_hasty_group(backend):
    return LoopGroup([make(backend)], shutdown_timeout=0.2)

def crash(backend):
    class Broken:
        running = False
        heartbeat = make(backend).heartbeat
        def run(self, **options):
            raise RuntimeError("no work today")
        def shutdown(self, *, timeout=30.0):
            return True
    return Broken()

def hostile_crash(backend):
    broken = crash(backend)
    def run(**options):
        raise RuntimeError("no\\nwork\\x1b[2J" + "x" * 10**6)
    broken.run = run
    return broken

def hostile_make(backend):
    raise RuntimeError("no\\nloop\\x1b[2J password=hunter2 " + "x" * 10**6)

def exits(backend):
    raise SystemExit("no\\nloop\\x1b[2J")

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
        eventually(lambda: jobs.approximate_count() == 0, within=120)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0


@pytest.mark.parametrize("body", ["slow", "until cut off"])
@pytest.mark.parametrize("target", ["shop:make", "shop:make_group"])
def test_what_is_unfinished_at_the_deadline_is_given_back(
    tmp_path: Path, url: str, start: Start, target: str, body: str
) -> None:
    process = start(target, "--shutdown-timeout", "0.2")
    with weakincentives.connect(url) as backend:
        jobs = backend.mailbox("jobs")
        jobs.send(body)
        eventually((tmp_path / f"began-{body}").exists, within=120)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == UNFINISHED
        (message,) = jobs.receive(wait_time_seconds=10)
        assert (message.delivery_count, message.nack_count) == (1, 0)


def test_without_the_option_the_deadline_of_a_group_counts(
    tmp_path: Path, url: str, start: Start
) -> None:
    process = start("shop:make_hasty_group")
    with weakincentives.connect(url) as backend:
        backend.mailbox("jobs").send("until cut off")
    eventually((tmp_path / "began-until cut off").exists, within=120)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == UNFINISHED
    assert time.monotonic() - began < 20  # the default is 30


def test_two_signals_at_once_are_one(tmp_path: Path, url: str, start: Start) -> None:
    """As coreutils' `timeout` sends them: one to the process, one to its group."""
    codes = []
    for n in range(5):  # on a busy machine one may come so late that it counts as the second
        process, body = start("shop:make"), f"until let go {n}"
        with weakincentives.connect(url) as backend:
            backend.mailbox("jobs").send(body)
        eventually((tmp_path / f"began-{body}").exists, within=120)
        for _ in range(6):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.001)
        (tmp_path / f"go-{body}").touch()
        codes.append(process.wait(timeout=120))
        if codes[-1] == 0:
            return
    raise AssertionError(f"exit codes: {codes}")


def test_a_second_signal_ends_at_once(tmp_path: Path, url: str, start: Start) -> None:
    process = start("shop:make")
    with weakincentives.connect(url) as backend:
        backend.mailbox("jobs").send("slow")
    eventually((tmp_path / "began-slow").exists, within=120)
    process.send_signal(signal.SIGTERM)
    lines_of(process, "SIGTERM: shutting down")
    time.sleep(2 * SAME_SIGNAL_SECONDS)  # what comes earlier counts as the same signal
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == -signal.SIGTERM
    assert process.stderr is not None
    assert "SIGTERM again: the process ends at once" in process.stderr.read()


def test_a_signal_while_the_loop_is_made_ends_it_cleanly(tmp_path: Path, start: Start) -> None:
    (tmp_path / "slow_to_make.py").write_text(
        "import time\nfrom pathlib import Path\nimport shop\n"
        "def make(backend):\n"
        "    Path('making').touch()\n"
        "    time.sleep(1)\n"
        "    return shop.make(backend)\n"
    )
    process = start("slow_to_make:make")
    eventually((tmp_path / "making").exists, within=120)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 0


def test_a_crashed_loop_ends_the_process_with_its_error(start: Start) -> None:
    process = start("shop:crash")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "no work today" in err


def lines_of(process: "subprocess.Popen[str]", until: str) -> list[str]:
    """Read the log of a worker up to the line that has this in it."""
    assert process.stderr is not None
    lines: list[str] = []
    while not any(until in line for line in lines):
        line = process.stderr.readline()
        assert line, "".join(lines)
        lines.append(line)
    return lines


def test_a_crash_is_in_the_log_with_its_traceback_and_then_one_line(start: Start) -> None:
    process = start("shop:hostile_crash")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert err.count("Traceback") == 1
    assert err.splitlines()[-1].startswith("wink: a loop crashed: RuntimeError: no\\nwork\\x1b[2J")
    assert "\x1b" not in err
    assert len(err) < 20_000


@pytest.mark.parametrize("options", [(), ("--log-json",)])
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("shop:hostile_make", "shop:hostile_make failed: RuntimeError: no\\nloop\\x1b[2J"),
        ("hostile:make", "hostile:make failed: ValueError: no\\nmodule\\x1b[2J"),
    ],
)
def test_what_fails_to_make_a_loop_says_so_without_driving_the_terminal(
    tmp_path: Path, start: Start, target: str, said: str, options: tuple[str, ...]
) -> None:
    (tmp_path / "hostile.py").write_text("raise ValueError('no\\nmodule\\x1b[2J')\n")
    process = start(target, *options)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert err.count("Traceback") == 1  # for whoever wrote it, in the log
    assert err.splitlines()[-1].startswith(f"wink: {said}")
    assert "\x1b" not in err
    assert "hunter2" not in err
    assert len(err) < 50_000


def test_a_loop_that_exits_as_it_is_made_says_why(start: Start) -> None:
    process = start("shop:exits")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert err == "wink: no\\nloop\\x1b[2J\n"


def test_a_worker_says_what_it_serves_and_where(start: Start) -> None:
    process = start("shop:make")
    lines = lines_of(process, "Serving jobs: concurrency=1 batch=1 lease=60s")
    assert "shop:make at sqlite:///" in lines[0]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 0


def test_a_group_hears_signals_through_the_group_around_it(start: Start) -> None:
    process = start("shop:group")
    lines = lines_of(process, "Serving in-a-group")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 0
    assert process.stderr is not None
    assert "no signal handlers" not in "".join([*lines, process.stderr.read()])


def test_the_log_can_be_json(url: str, start: Start) -> None:
    process = start("shop:make", "--log-json")
    with weakincentives.connect(url) as backend:
        id = backend.mailbox("jobs").send("fail")
        lines = [json.loads(line) for line in lines_of(process, "Message handling failed")]
    assert {"time", "level", "logger", "message", "process"} <= lines[0].keys()
    assert [line["mailbox"] for line in lines if "Serving" in line["message"]] == ["jobs"]
    failed = lines[-1]
    assert (failed["level"], failed["message_id"], failed["delivery_count"]) == ("warning", id, 1)
    assert failed["error_message"] == "one\\ntwo"
    assert "traceback" not in failed
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 0


def test_the_log_can_be_silent_or_full(url: str, start: Start) -> None:
    silent = start("shop:make", "--log-level", "error")
    with weakincentives.connect(url) as backend:
        backend.mailbox("jobs").send("one")
        eventually(lambda: backend.mailbox("jobs").approximate_count() == 0, within=120)
    silent.send_signal(signal.SIGTERM)
    _, err = silent.communicate(timeout=120)
    assert (silent.returncode, err) == (0, "")
    full = start("shop:make", "--log-level", "DEBUG")
    with weakincentives.connect(url) as backend:
        backend.mailbox("jobs").send("fail")
    lines = lines_of(full, "ValueError: one")
    assert any("Traceback" in line for line in lines)


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

    eventually(ready, within=120)


@pytest.mark.parametrize("target", ["shop:ready", "shop:group"])
def test_loops_that_exist_are_run_as_they_are(start: Start, target: str) -> None:
    process = start(target, "--wait", "0.1")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("shop", "must be MODULE:ATTRIBUTE"),
        ("nosuchmodule:x", "no module 'nosuchmodule'"),
        ("shop:missing", "has no attribute 'missing'"),
        ("shop:nothing", "is an int; it must be a loop"),
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


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("--visibility", "0"),
            (
                "--visibility must be at least 0.05 seconds in a loop, or a job would be given to "
                "others while it runs; not 0.0"
            ),
        ),
        (
            ("--visibility", "1e9"),
            (
                "--visibility must be a number of seconds from 0 to 315360000 (ten years), "
                "not 1000000000.0"
            ),
        ),
        (
            ("--wait", "-1"),
            "--wait must be a number of seconds from 0 to 315360000 (ten years), not -1.0",
        ),
        (
            ("--shutdown-timeout", "0"),
            (
                "--shutdown-timeout must be a number of seconds above 0 and up to 315360000 "
                "(ten years), not 0.0"
            ),
        ),
        (
            ("--watchdog", "5"),
            (
                "--watchdog must be above --wait (20), or an idle loop looks like one that hangs; "
                "not 5"
            ),
        ),
        (
            ("--health-port", "70000"),
            "--health-port must be a whole number from 0 to 65535, not 70000",
        ),
    ],
)
def test_an_option_that_makes_no_sense_is_one_line(
    tmp_path: Path,
    url: str,
    options: tuple[str, str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(["worker", "shop:make", "--url", url, "--log-level", "error", *options]) == 2
    assert capsys.readouterr().err == f"wink: {told}\n"
