"""The counts over time: bounded, and still there after a restart."""

import logging
from pathlib import Path

import apsw
import pytest

from weakincentives.dashboard.history import COARSE, FINE, Counts, History, Sample
from weakincentives.dashboard.sparkline import MOST_POINTS, sparkline

START = 1_700_000_000


class Time:
    now = float(START)

    def __call__(self) -> float:
        return self.now


def rows(path: Path) -> int:
    return int(apsw.Connection(str(path)).execute("SELECT count(*) FROM sample").get)


def test_it_survives_a_restart(tmp_path: Path) -> None:
    time, path = Time(), tmp_path / "made" / "history.db"
    first = History(path, now=time)
    first.record({"orders": Counts(3, 1, 0)})
    first.close()
    assert path.stat().st_mode & 0o777 == 0o600
    time.now += 20
    second = History(path, now=time)
    second.record({"orders": Counts(5, 0, 0)})
    assert second.read("orders", 3600) == [
        Sample(START, Counts(3, 1, 0)),
        Sample(START + 20, Counts(5, 0, 0)),
    ]
    assert second.read("others", 3600) == []
    second.close()


def test_counts_that_do_not_change_are_not_written_again(tmp_path: Path) -> None:
    time, path = Time(), tmp_path / "history.db"
    history = History(path, now=time)
    for _ in range(20):
        history.record({"orders": Counts(3, 1, 0)})
        time.now += 10
    assert rows(path) == 2  # one for each step
    history.close()


def test_what_is_too_old_is_dropped(tmp_path: Path) -> None:
    time, path = Time(), tmp_path / "history.db"
    history = History(path, now=time)
    history.record({"orders": Counts(1, 0, 0)})
    time.now += FINE.keep + 20
    history.record({"orders": Counts(2, 0, 0)})
    assert [sample.counts.pending for sample in history.read("orders", 3600)] == [2]
    assert [sample.counts.pending for sample in history.read("orders", 86_400)] == [1, 2]
    time.now += COARSE.keep + 700
    history.record({"orders": Counts(3, 0, 0)})
    assert [sample.counts.pending for sample in history.read("orders", 86_400)] == [3]
    assert rows(path) == 2
    history.close()


def test_the_number_of_rows_is_bounded(tmp_path: Path) -> None:
    time, path = Time(), tmp_path / "history.db"
    history = History(path, now=time, most_rows=100)
    for number in range(60):
        history.record({f"queue-{n}": Counts(number, 0, 0) for n in range(5)})
        time.now += 10
        assert rows(path) <= 100
    assert history.read("queue-0", 60)[-1].counts.pending == 59
    history.close()
    assert History(path, now=time, most_rows=100)._rows <= 100


def test_a_file_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.db"
    history = History(path)
    other = apsw.Connection(str(path))
    history._connection.set_busy_timeout(0)
    with caplog.at_level(logging.WARNING), other:
        other.execute("INSERT INTO queue (name) VALUES ('held by another')")
        history.record({"orders": Counts(1, 0, 0)})
        history.record({"orders": Counts(2, 0, 0)})
    assert caplog.text.count("cannot be written") == 1
    history.record({"orders": Counts(3, 0, 0)})
    assert history.read("orders", 3600)[-1].counts.pending == 3
    history.close()


def test_a_line_begins_with_the_first_count_and_holds_each_until_the_next() -> None:
    assert sparkline([], 0, 3600) == ""
    samples = [Sample(1800, Counts(4, 9, 0)), Sample(2700, Counts(0, 9, 2))]
    points = [tuple(map(float, point.split(","))) for point in sparkline(samples, 0, 3600).split()]
    assert len(points) == MOST_POINTS // 2
    assert points[0][1] == 1  # four, the highest
    assert points[-1] == (120, 12)  # two
