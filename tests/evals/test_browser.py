"""The report as a browser shows it."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from tests.evals.browser import Picture, Pixel, photographed
from tests.evals.loops import result
from weakincentives.evals import EvalReport

pytestmark = pytest.mark.slow

LIGHT = {"page": (0xF6, 0xF7, 0xF9), "bar": (0x2F, 0x6F, 0xD6)}
DARK = {"page": (0x12, 0x15, 0x1A), "bar": (0x6B, 0xA3, 0xF5)}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(7)
    tags = ("math", "history", "<script>alert(1)</script>")
    results = [
        result(f"s{n}", rng.random(), latency_ms=rng.expovariate(0.01), tags=(tags[n % 3],))
        for n in range(200)
    ]
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(EvalReport(tuple(results), "run-1", 200).to_html(), encoding="utf-8")
    return path


def blocks(picture: Picture, colour: Pixel, left: int, right: int) -> list[tuple[int, int, int]]:
    """The runs of rows with this colour between two columns: top, bottom and pixels of each."""
    counts = [picture.row(y)[left:right].count(colour) for y in range(picture.height)]
    rows = [y for y, count in enumerate(counts) if count]
    starts = [y for before, y in pairwise([-10, *rows]) if y - before > 3]
    ends = [before for before, y in pairwise([*rows, 10**6]) if y - before > 3]
    return [(s, e, sum(counts[s : e + 1])) for s, e in zip(starts, ends, strict=True)]


@pytest.mark.parametrize(
    ("colours", "flags"),
    [(LIGHT, ()), (DARK, ("--blink-settings=preferredColorScheme=0",))],
    ids=["light", "dark"],
)
def test_the_plots_are_there_side_by_side(
    page: Path, colours: dict[str, Pixel], flags: tuple[str, ...]
) -> None:
    picture, console = photographed(page, 820, 900, *flags)
    assert console == ""
    assert picture.row(0)[0] == colours["page"]
    left = blocks(picture, colours["bar"], 0, 410)
    right = blocks(picture, colours["bar"], 410, 820)
    assert len(left) == 4, "the scores, then a bar for each of three tags"
    assert len(right) == 1, "the latencies"
    assert all(pixels > 1000 for _, _, pixels in (*left, *right))


def test_it_fits_a_phone(page: Path) -> None:
    picture, console = photographed(page, 500, 1500)
    assert console == ""
    assert len(blocks(picture, LIGHT["bar"], 0, 500)) == 5, "all plots below each other"
    assert all(set(picture.row(y)[-10:]) == {LIGHT["page"]} for y in range(picture.height)), (
        "nothing reaches over the edge"
    )
