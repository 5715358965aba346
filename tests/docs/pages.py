"""Markdown pages as programs: each page's Python blocks, in order, in one namespace."""

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Block", "Page", "read_page"]

FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[\w+-]*)[^\n]*\n"
    r"(?P<code>.*?)^(?P=indent)(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
NOT_RUN = re.compile(r"<!--\s*not run:\s*(?P<reason>.*?)\s*-->\s*\Z", re.DOTALL)
NEEDS = re.compile(r"<!--\s*needs:\s*(?P<what>[\w, -]+?)\s*-->")


@dataclass(frozen=True)
class Block:
    """A Python block, and where its code begins."""

    line: int
    code: str


@dataclass(frozen=True)
class Page:
    """The blocks of a page that run, those that do not and why, and the services it needs."""

    path: Path
    blocks: tuple[Block, ...]
    left_out: tuple[tuple[Block, str], ...]
    needs: frozenset[str]

    def run(self, namespace: dict[str, object]) -> None:
        """Run every block; a traceback shows the page's own lines."""
        for block in self.blocks:
            source = "\n" * (block.line - 1) + block.code
            exec(compile(source, str(self.path), "exec", dont_inherit=True), namespace)


def read_page(path: Path) -> Page:
    """Read a markdown file."""
    text = path.read_text(encoding="utf-8")
    run: list[Block] = []
    left_out: list[tuple[Block, str]] = []
    previous_end = 0
    for fence in FENCE.finditer(text):
        before = text[previous_end : fence.start()]
        previous_end = fence.end()
        if fence["language"].lower() not in ("python", "py"):
            continue
        indent = len(fence["indent"])
        code = "".join(line[indent:] for line in fence["code"].splitlines(keepends=True))
        block = Block(text.count("\n", 0, fence.start("code")) + 1, code)
        if excuse := NOT_RUN.search(before.rstrip()):
            left_out.append((block, excuse["reason"]))
        else:
            run.append(block)
    needs = frozenset(
        what.strip() for found in NEEDS.finditer(text) for what in found["what"].split(",")
    )
    return Page(path, tuple(run), tuple(left_out), needs)
