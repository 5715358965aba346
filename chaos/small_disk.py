"""Scenarios that fill a small disk: each runs in a process that alone sees the disk.

``python -m chaos.small_disk DIRECTORY SCENARIO SEED SCALE [PLANT]``
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from chaos.stage import Result, Stage
from testkit.small_disk import mount_small_disk

__all__ = ["disk", "on_a_small_disk"]

DISK = "WINK_CHAOS_DISK"
"""The variable that says where the disk is mounted."""
LONGEST = 1200.0


def on_a_small_disk(stage: Stage, act: Callable[[Stage], Result]) -> Result:
    """Run a scenario in a process of its own that has mounted a small disk."""
    if DISK in os.environ:
        return act(stage)
    place = stage.directory / "disk"
    place.mkdir()
    scale = "full" if stage.full else "short"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "chaos.small_disk"),
            *(str(place), stage.key, str(stage.seed), scale, stage.plant),
        ],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    if done.returncode:
        return Result(0, [f"the process ended with {done.returncode}: {done.stderr[-2000:]}"])
    return Result(**json.loads(done.stdout.splitlines()[-1]))


def disk() -> Path:
    """Return where the small disk is mounted."""
    return Path(os.environ[DISK])


def main() -> None:
    from chaos.scenarios import all_scenarios

    place, key, seed, scale, plant = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    try:
        mount_small_disk(Path(place))
    except OSError as error:
        result = Result(0, not_run=f"a small disk cannot be mounted here: {error}")
    else:
        os.environ[DISK] = place
        result = all_scenarios()[key](int(seed), scale, plant)  # type: ignore[arg-type]
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
