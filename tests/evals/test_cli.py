"""``wink eval``, as people and CI servers call it."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

import weakincentives
from testkit.processes import alive
from testkit.waiting import eventually
from tests.evals.loops import eval_loop, sums
from tests.evals.test_dataset import BAD
from weakincentives.cli.app import run

MODULE = """
import os, pathlib, sys, time
from weakincentives.adapters import CallableAdapter
from weakincentives.evals import EvalLoop, exact_match
from weakincentives.runtime import DLQPolicy, InMemoryMailbox, MainLoop

def answer(prompt):
    one, other = prompt.params.split("+")
    return str(int(one) + int(other)) if int(one) % 10 else "wrong"

def slow(prompt):
    pathlib.Path(f"pid-{os.getpid()}").touch()
    time.sleep(0.05)
    pathlib.Path(f"done-{prompt.params}").touch()
    return answer(prompt)

def deadly(prompt):
    os._exit(9)

def poisoned(prompt):
    if int(prompt.params.split("+")[0]) >= 37:
        os._exit(9)
    return answer(prompt)

def loop_of(answer, requests, dlq=None):
    inner = MainLoop[str, str](adapter=CallableAdapter(answer), requests=InMemoryMailbox("unused"))
    return EvalLoop(loop=inner, evaluator=exact_match, requests=requests, dlq=dlq)

def quick(backend):
    return loop_of(answer, backend.mailbox("evals"))

def slowly(backend):
    return loop_of(slow, backend.mailbox("evals"))

def dying(backend):
    return loop_of(deadly, backend.mailbox("evals"))

def poison(backend):
    letters = DLQPolicy(mailbox=backend.mailbox("letters"), max_delivery_count=3)
    return loop_of(poisoned, backend.mailbox("evals"), letters)

def stillborn(backend):
    if sys.argv[0].endswith("eval_pool.py"):
        os._exit(7)
    return poison(backend)

def hostile(backend):
    if sys.argv[0].endswith("eval_pool.py"):
        raise RuntimeError("no\\nloop\\x1b[2J")
    return quick(backend)

class Idler:
    def run(self): ...
    def shutdown(self): ...

def idle(backend):
    return Idler()

in_memory = loop_of(answer, InMemoryMailbox("evals"))
no_loop = 7
"""


@dataclass
class Said:
    stdout: str
    stderr: str


Wink = Callable[..., Said]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "arithmetic.py").write_text(MODULE)
    sums(40).save(tmp_path / "data.jsonl")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def wink(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Wink]:
    """The command in this process; the workers it starts are processes all the same."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*arguments: object, code: int = 0) -> Said:
        sys.modules.pop("arithmetic", None)
        found = run(["eval", *map(str, arguments)])
        said = Said(*capsys.readouterr())
        assert found == code, said
        return said

    yield call
    sys.modules.pop("arithmetic", None)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "weakincentives.cli", "eval", *map(str, arguments)]


def worker_pids(place: Path) -> list[int]:
    return [int(path.name[4:]) for path in place.glob("pid-*")]


def test_run_writes_every_kind_of_report(place: Path, wink: Wink) -> None:
    reports = [f"out{ending}" for ending in (".html", ".json", ".md", ".xml")]
    options = [option for name in reports for option in ("--report", name)]
    done = wink("run", "arithmetic:quick", "data.jsonl", "--workers", 2, "--json", *options)
    summary = json.loads(done.stdout)
    assert (summary["total"], summary["passed"], summary["missing"]) == (40, 36, 0)
    assert "40 of 40 results" in done.stderr
    assert json.loads((place / "out.json").read_text())["summary"] == summary
    assert ElementTree.parse(place / "out.xml").getroot().get("failures") == "4"
    assert "<svg" in (place / "out.html").read_text()
    assert "| 36 of 40 |" in (place / "out.md").read_text()


def test_workers_log_as_they_are_told(place: Path) -> None:
    options = ("--log-level", "info", "--log-json")
    done = subprocess.run(
        command("run", "arithmetic:quick", "data.jsonl", *options),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    logged = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert any(line["message"].startswith("Serving evals: ") for line in logged)
    silent = subprocess.run(
        command("run", "arithmetic:quick", "data.jsonl"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Serving" not in silent.stderr


def test_a_terminal_shows_a_bar(place: Path) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        child = subprocess.Popen(
            command("run", "arithmetic:in_memory", "data.jsonl"),
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(theirs)
        shown = b""
        try:
            while piece := terminal.read(4096):
                shown += piece
        except OSError:
            pass  # this is how a terminal ends on Linux
        assert child.wait(120) == 0
    assert b"40/40" in shown
    assert "━".encode() in shown


@pytest.mark.parametrize(("rate", "code"), [("0.9", 0), ("0.91", 3)])
def test_the_exit_code_tells_whether_enough_passed(wink: Wink, rate: str, code: int) -> None:
    done = wink("run", "arithmetic:in_memory", "data.jsonl", "--min-pass-rate", rate, code=code)
    assert "36 of 40" in done.stdout
    assert ("is below" in done.stderr) is (code == 3)


def test_submit_and_collect_in_two_steps(place: Path, wink: Wink) -> None:
    done = wink("submit", "evals", "data.jsonl", "--run", "nightly", "--json")
    assert json.loads(done.stdout) == {
        "run_id": "nightly",
        "samples": 40,
        "sent": 40,
        "have_results": 0,
        "sent_before": 0,
    }
    early = wink("collect", "nightly", "data.jsonl", "--timeout", 0, "--report", "r.json", code=4)
    assert "40 of 40 results are missing" in early.stderr
    assert json.loads((place / "r.json").read_text())["missing"][0] == "sum-0"
    # `run` under the same id finds the samples queued, and only has to bring the workers.
    done = wink("run", "arithmetic:quick", "data.jsonl", "--run", "nightly", "--json")
    assert json.loads(done.stdout)["total"] == 40


def test_collect_what_workers_elsewhere_bring(wink: Wink) -> None:
    wink("submit", "evals", "data.jsonl", "--run", "nightly")
    with weakincentives.connect("sqlite:///wink.db") as backend:
        eval_loop(backend.mailbox("evals")).run(max_iterations=40, wait_time_seconds=0)
    said = wink("collect", "nightly", "data.jsonl", "--min-pass-rate", 1)
    assert "40 of 40" in said.stdout
    again = wink("collect", "nightly", "data.jsonl", "--timeout", 0, code=4)
    assert "40 of 40 results are missing" in again.stderr, "they were reported"


def test_submit_says_what_it_left_out_and_why(wink: Wink) -> None:
    wink("submit", "evals", "data.jsonl", "--run", "nightly")
    with weakincentives.connect("sqlite:///wink.db") as backend:
        eval_loop(backend.mailbox("evals")).run(max_iterations=3, wait_time_seconds=0)
    done = wink("submit", "evals", "data.jsonl", "--run", "nightly", "--json")
    said = json.loads(done.stdout)
    assert (said["sent"], said["have_results"], said["sent_before"]) == (0, 3, 37)
    done = wink("submit", "evals", "data.jsonl", "--run", "nightly")
    assert "sent 0 of 40 samples to evals as run nightly" in done.stdout
    assert "left out 3 samples that have a result" in done.stdout
    assert "left out 37 samples that were sent before" in done.stdout


@pytest.mark.parametrize("again", ["run", "submit"])
def test_the_id_of_a_run_that_is_over_is_refused(wink: Wink, again: str) -> None:
    wink("run", "arithmetic:quick", "data.jsonl", "--run", "again")
    place = "arithmetic:quick" if again == "run" else "evals"
    done = wink(again, place, "data.jsonl", "--run", "again", "--json", code=1)
    assert done.stdout == ""
    assert "run again is over: 40 of its 40 samples were sent" in done.stderr
    assert "use another id" in done.stderr
    assert "crashed" not in done.stderr


def test_a_worker_whose_run_has_ended_says_nothing(place: Path) -> None:
    """It starts more slowly than the run ends."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as nobody_reads:
        done = subprocess.run(
            [sys.executable, "-m", "weakincentives.cli.eval_pool", "arithmetic:quick", "30"],
            stdin=subprocess.DEVNULL,
            stdout=nobody_reads,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "WINK_URL": "sqlite:///e.db"},
            cwd=place,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_worker_loads_nothing_that_draws_or_reads_commands() -> None:
    """A pool starts many of them, and starts them anew when they die."""
    asked = "import sys, weakincentives.cli.eval_pool; print({'rich', 'typer'} & {*sys.modules})"
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60)
    assert said.stdout == "set()\n", said.stderr


def test_collect_says_at_once_that_a_run_is_unknown(wink: Wink) -> None:
    wink("submit", "evals", "data.jsonl", "--run", "nightly")
    done = wink("collect", "nigthly", "data.jsonl", "--timeout", 0, code=4)
    assert "no run nigthly is known here; known: nightly" in done.stderr
    done = wink("collect", "nightly", "data.jsonl", "--timeout", 0, code=4)
    assert "known" not in done.stderr


def test_collect_says_at_once_that_the_data_set_is_another(place: Path, wink: Wink) -> None:
    wink("submit", "evals", "data.jsonl", "--run", "nightly")
    sums(41).save(place / "other.jsonl")
    done = wink("collect", "nightly", "other.jsonl", "--timeout", 0, code=4)
    assert "run nightly was begun with another data set" in done.stderr
    done = wink("collect", "nightly", "data.jsonl", "--timeout", 0, code=4)
    assert "another data set" not in done.stderr


def test_run_says_which_samples_of_other_runs_it_evaluates(wink: Wink) -> None:
    wink("submit", "evals", "data.jsonl", "--run", "old")
    done = wink("run", "arithmetic:quick", "data.jsonl", "--run", "new")
    assert "40 samples of run old wait in evals, and are evaluated too" in done.stderr
    assert "wink purge evals" in done.stderr
    done = wink("run", "arithmetic:quick", "data.jsonl", "--run", "newer")
    assert "are evaluated too" not in done.stderr


def test_compare(place: Path, wink: Wink) -> None:
    for name in ("one.json", "two.json"):
        wink("run", "arithmetic:in_memory", "data.jsonl", "--report", name)
    done = wink("compare", "one.json", "two.json", "--fail-if-worse", "--json")
    found = json.loads(done.stdout)
    assert (found["verdict"], found["p_value"]) == ("no significant difference", 1.0)
    worse = json.loads((place / "two.json").read_text())
    for result in worse["results"][:15]:
        result["score"] = {"value": 0.0, "passed": False}
    (place / "two.json").write_text(json.dumps(worse))
    done = wink("compare", "one.json", "two.json", "--fail-if-worse", code=3)
    assert "worse" in done.stdout
    done = wink("compare", "two.json", "one.json", "--fail-if-worse")
    assert "better" in done.stdout


@pytest.mark.parametrize("name", BAD)
def test_a_bad_data_set_is_one_line_and_exit_code_2(name: str, place: Path, wink: Wink) -> None:
    content, _ = BAD[name]
    (place / "bad.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    said = wink("run", "arithmetic:quick", "bad.jsonl", code=2).stderr
    assert said.startswith("wink: bad.jsonl")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("run", "arithmetic:quick", "big.jsonl"), ("submit", "evals", "big.jsonl")]
)
def test_a_line_of_100_mb_is_one_line_and_exit_code_2(
    place: Path, wink: Wink, arguments: tuple[str, ...]
) -> None:
    with (place / "big.jsonl").open("wb") as file:
        file.write(b'{"id": "')
        file.truncate(100 * 1024 * 1024)
    said = wink(*arguments, code=2).stderr
    assert said.count("\n") == 1
    assert "line 1 is longer than" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "arithmetic:quick", "data.jsonl", "--workers", 0), "--workers must be"),
        (("run", "arithmetic:quick", "data.jsonl", "--report", "out.pdf"), "must end in"),
        (("run", "arithmetic:quick", "data.jsonl", "--report", "no/out.md"), "no directory"),
        (("run", "arithmetic:quick", "data.jsonl", "--min-pass-rate", 90), "from 0 to 1"),
        (("run", "arithmetic:quick", "data.jsonl", "--run", "a/b"), "--run must be"),
        (("run", "arithmetic:quick", "data.jsonl", "--timeout", -1), "--timeout must be"),
        (("collect", "nightly", "data.jsonl", "--timeout", "nan"), "--timeout must be"),
        (("run", "arithmetic:quick", "none.jsonl"), "none.jsonl cannot be read"),
        (("run", "arithmetic:no_loop", "data.jsonl"), "arithmetic:no_loop"),
        (("run", "arithmetic:MainLoop", "data.jsonl"), "it must be an EvalLoop"),
        (("run", "arithmetic:idle", "data.jsonl"), "is an Idler; it must be an EvalLoop"),
        (("run", "nothing:quick", "data.jsonl"), "there is no module 'nothing'"),
        (("compare", "data.jsonl", "data.jsonl"), "data.jsonl is not a report"),
        (("compare", "none.json", "none.json"), "none.json cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    wink: Wink, arguments: tuple[object, ...], said: str
) -> None:
    done = wink(*arguments, code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_report_that_cannot_be_written_keeps_the_results(place: Path, wink: Wink) -> None:
    (place / "taken.md").mkdir()
    options = ("arithmetic:quick", "data.jsonl", "--run", "kept", "--report")
    said = wink("run", *options, "taken.md", code=1).stderr
    assert "taken.md cannot be written" in said
    assert json.loads(wink("run", *options, "free.md", "--json").stdout)["total"] == 40


def test_workers_that_only_die_end_the_run(wink: Wink) -> None:
    done = wink("run", "arithmetic:dying", "data.jsonl", "--workers", 2, code=1)
    assert "died one after the other without a new result, the last by exit code 9" in done.stderr
    assert "with a dlq" in done.stderr


def test_samples_that_kill_their_workers_fail_and_the_rest_goes_on(place: Path, wink: Wink) -> None:
    """Three of them kill nine workers before the first is given up."""
    options = ("--lease", 1, "--timeout", 240, "--report", "out.json", "--json")
    done = wink("run", "arithmetic:poison", "data.jsonl", *options)
    summary = json.loads(done.stdout)
    assert (summary["total"], summary["missing"]) == (40, 0)
    assert summary["errors_by_type"] == {"RepeatedCrashError": 3}
    results = json.loads((place / "out.json").read_text())["results"]
    assert [one["sample_id"] for one in results if one["error"]] == ["sum-37", "sum-38", "sum-39"]
    with weakincentives.connect("sqlite:///wink.db") as backend:
        assert backend.mailbox("letters").approximate_count() == 3


def test_workers_that_cannot_start_end_the_run_also_with_a_dlq(wink: Wink) -> None:
    done = wink("run", "arithmetic:stillborn", "data.jsonl", code=1)
    assert "7 workers died one after the other" in done.stderr
    assert "exit code 7" in done.stderr


def test_what_fails_to_make_a_loop_in_a_worker_does_not_drive_the_terminal(place: Path) -> None:
    done = subprocess.run(
        command("run", "arithmetic:hostile", "data.jsonl"),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=place,
    )
    assert done.returncode == 1
    assert "arithmetic:hostile failed: RuntimeError: no\\nloop\\x1b[2J\n" in done.stderr
    assert "\x1b" not in done.stderr


def cut_off(place: Path, how: signal.Signals) -> None:
    """Start a run of 200 samples, stop it in the middle, and see its workers end."""
    sums(200).save(place / "data.jsonl")
    arguments = ("run", "arithmetic:slowly", "data.jsonl", "--workers", 2, "--run", "stopped")
    first = subprocess.Popen(command(*arguments), cwd=place, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: len(worker_pids(place)) == 2, within=120)
        eventually(lambda: len(list(place.glob("done-*"))) > 20, within=120)
    finally:
        first.send_signal(how)
        code = first.wait(60)
    assert code == (-how if how is signal.SIGKILL else 128 + how)
    eventually(lambda: not any(alive(pid) for pid in worker_pids(place)), within=120)


def test_a_worker_that_is_told_to_end_does_not_abort(wink: Wink) -> None:
    """It ends while it still watches its standard input."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "weakincentives.cli.eval_pool", "arithmetic:quick", "30"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "WINK_URL": "sqlite:///e.db"},
        start_new_session=True,
    )
    try:
        wink("submit", "evals", "data.jsonl", "--run", "r", "--url", "sqlite:///e.db")
        with weakincentives.connect("sqlite:///e.db") as backend:
            results = backend.mailbox("r")
            eventually(lambda: results.stats().total == 40, within=120)
        worker.terminate()
        worker.wait(60)
    finally:
        worker.kill()
        _, said = worker.communicate()
    assert b"Fatal Python error" not in said
    assert worker.returncode == 0, said


def test_workers_end_with_a_run_that_is_killed(place: Path) -> None:
    cut_off(place, signal.SIGKILL)


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGINT,
        signal.SIGTERM,
        # What a killed collector held comes back when its leases end, after 20 seconds.
        pytest.param(signal.SIGKILL, marks=pytest.mark.full),
    ],
)
def test_a_run_that_was_cut_off_is_resumed(place: Path, wink: Wink, how: signal.Signals) -> None:
    cut_off(place, how)
    evaluated = len(list(place.glob("done-*")))
    done = wink("run", "arithmetic:slowly", "data.jsonl", "--run", "stopped", "--json")
    summary = json.loads(done.stdout)
    assert (summary["total"], summary["passed"]) == (200, 180)
    (left,) = re.findall(r"run stopped: (\d+) samples to go", done.stderr)
    # What a killed collector holds cannot be seen yet, and seems to be missing.
    assert 200 - evaluated <= int(left) <= (200 if how is signal.SIGKILL else 199)
