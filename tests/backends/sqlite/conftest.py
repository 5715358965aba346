import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.sqlite.clocks import TwoClocks
from weakincentives.contrib.mailbox.sqlite import SQLiteStore
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.contrib.mailbox.sqlite.registry import open_database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "box.db"


@pytest.fixture
def clock() -> TwoClocks:
    return TwoClocks()


@pytest.fixture
def opened(path: Path, clock: TwoClocks) -> Iterator[Callable[..., Database]]:
    """Opens the file on the fake clocks; closes what the test opened."""
    databases: list[Database] = []

    def open_it(boot_id: str = "first boot", **options: Any) -> Database:
        databases.append(open_database(path, "normal", clock=clock, boot_id=boot_id, **options))
        return databases[-1]

    yield open_it
    for database in databases:
        database.close()


@pytest.fixture
def reopened(clock: TwoClocks) -> Callable[[Path], Database]:
    """Opens any file on the fake clocks."""
    return lambda path: open_database(path, "normal", clock=clock, boot_id="first boot")


@pytest.fixture
def open_files() -> Callable[[], int]:
    """Counts the open files of this process once the wake-up threads have let go of theirs."""
    directory = Path("/proc/self/fd")
    if not directory.exists():
        pytest.skip("counting open files needs /proc")

    def count() -> int:
        gc.collect()
        return len(list(directory.iterdir()))

    return count


@pytest.fixture
def store(opened: Callable[..., Database]) -> SQLiteStore:
    return SQLiteStore(opened(), "jobs")
