"""The Python blocks of the specification's five documents, as they stand."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SEEDS", "Block", "blocks"]

ROOT = Path(__file__).parents[2]
SEEDS = Path(os.environ.get("WINK_SEEDS") or ROOT.parent / "shared" / "seeds")

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One block: which document, the how-manieth, and where its code begins."""

    seed: str
    index: int
    path: Path
    line: int
    heading: str
    code: str


def blocks() -> dict[tuple[str, int], Block]:
    """Return every block by document and index; nothing where the documents are absent."""
    found: dict[tuple[str, int], Block] = {}
    for path in sorted(SEEDS.glob("[0-9][0-9][0-9]_*.txt")):
        seed, text = path.name[:3], path.read_text(encoding="utf-8")
        for index, match in enumerate(BLOCK.finditer(text)):
            headings = HEADING.findall(text, 0, match.start())
            line = text.count("\n", 0, match.start(1)) + 1
            found[seed, index] = Block(
                seed, index, path, line, headings[-1] if headings else "", match[1]
            )
    return found
