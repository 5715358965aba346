"""The virtual environment of the peers: made when it is first needed, and kept."""

import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

__all__ = ["ROOT", "python_with"]

ROOT = Path(__file__).parents[2]


def python_with(name: str, packages: Iterable[str]) -> Path:
    """Return the Python of an environment with these packages and nothing of ours."""
    # One for each peer, because they may not agree on a version of redis.
    place = ROOT / ".venv-peers" / f"{name}-{sys.version_info.major}.{sys.version_info.minor}"
    python, ready = place / "bin" / "python", place / "packages"
    wanted = "\n".join(sorted(packages))
    if not ready.exists() or ready.read_text() != wanted:
        venv.create(place, with_pip=True, clear=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *wanted.split()],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        ready.write_text(wanted)
    return python
