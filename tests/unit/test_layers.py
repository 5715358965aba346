"""The layers hold because forbidden imports are refused, not because nobody has tried one."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
SETTINGS = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]
OUTSIDE = ("testkit", "chaos", "benchmarks", "tests")

# For each contract: a module, and what it must not import; those of the library without its name.
PLANTED = {
    "Layers": [
        ("serde", "runtime.mailbox"),
        ("runtime.mailbox.send", "contrib.mailbox.urls"),
        ("runtime.group.health_server", "observability.prometheus"),
        ("observability.observe", "cli.app"),
        ("runtime.group.readiness", "dashboard.survey"),
    ],
    "Layers of the runtime": [
        ("runtime.mailbox.send", "runtime.worker.backoff"),
        ("runtime.mailbox.types", "runtime.agent.session"),
        ("runtime.leases.scheduler", "runtime.worker.config"),
        ("runtime.worker.decide", "runtime.group.watchdog"),
        ("runtime.group.watchdog", "runtime.agent.session"),
    ],
    "Backends do not know each other": [
        ("contrib.mailbox.sqlite.store", "contrib.mailbox.redis.resp"),
        ("contrib.mailbox.redis.store", "contrib.mailbox.sqs.leases"),
    ],
    "Backends know mailboxes, and nothing of the loops": [
        ("contrib.mailbox.sqs.store", "runtime.worker.worker"),
        ("contrib.mailbox.sqlite.store", "runtime.worker.backoff"),
        ("contrib.mailbox.redis.store", "runtime.heartbeat"),
    ],
    "The test kit serves chaos and benchmarks, and the library serves all three": [
        ("ids", "testkit.waiting"),
        ("testkit.proxy", "chaos.history"),
        ("chaos.load", "benchmarks.harness"),
    ],
    "Nothing is built on the tests": [
        ("chaos.processes", "tests.services"),
        ("benchmarks.harness", "tests.loops.helpers"),
        ("testkit.waiting", "tests.services"),
    ],
}


def full_name(module: str) -> str:
    return module if module.startswith(OUTSIDE) else f"weakincentives.{module}"


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what the linter says of a copy in which every forbidden import was planted."""
    top = tmp_path_factory.mktemp("planted")
    shutil.copy(TOP / "pyproject.toml", top)
    for folder in ("src", "testkit", "chaos", "benchmarks"):
        shutil.copytree(TOP / folder, top / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for imports in PLANTED.values():
        for module, forbidden in imports:
            place = top if module.startswith(OUTSIDE) else top / "src"
            path = place / f"{full_name(module).replace('.', '/')}.py"
            path.write_text(f"{path.read_text()}\n\nimport {full_name(forbidden)}\n")
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=top,
        env={**os.environ, "PYTHONPATH": str(top / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return done.stdout


def test_there_is_a_planted_import_for_each_contract() -> None:
    assert {contract["name"] for contract in SETTINGS["contracts"]} == set(PLANTED)


@pytest.mark.parametrize(
    ("name", "module", "forbidden"),
    [(name, *pair) for name, pairs in PLANTED.items() for pair in pairs],
)
def test_a_forbidden_import_is_refused(
    complaints: str, name: str, module: str, forbidden: str
) -> None:
    assert f"{name} BROKEN" in complaints
    _, _, broken = complaints.partition("Broken contracts")
    _, _, its_own = broken.partition(f"\n{name}\n---")
    # The linter does not look into the tests: for it they are one module.
    imported = "tests" if forbidden.startswith("tests.") else full_name(forbidden)
    assert f"{full_name(module)} -> {imported} (" in its_own
