import re
import subprocess
import sys
from pathlib import Path

from weakincentives.runtime.group import health_server as health
from weakincentives.runtime.group.group import HAND_OVER_SECONDS
from weakincentives.runtime.group.signals import SAME_SIGNAL_SECONDS
from weakincentives.runtime.group.watchdog import WATCHDOG_EXIT_CODE
from weakincentives.runtime.worker.worker import GIVE_BACK_SECONDS

PAGE = (Path(__file__).parents[2] / "docs" / "lifecycle.md").read_text()


def test_the_example_runs():
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "printed a page\nprinted the last page\n"), ran


def test_the_figures_are_those_of_the_code():
    assert f"| {WATCHDOG_EXIT_CODE} |" in PAGE
    assert SAME_SIGNAL_SECONDS == 0.5
    assert GIVE_BACK_SECONDS == 1
    assert HAND_OVER_SECONDS == 2
    assert 1 / health.ACCEPT_PAUSE == 500
    assert health.MAX_CLIENTS == 64
    assert health.CLIENT_TIMEOUT == 5
    assert health.MAX_HEAD == 8 * 1024
