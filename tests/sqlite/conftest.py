from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weakincentives.contrib.mailbox.sqlite import SQLiteStore
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.contrib.mailbox.sqlite.registry import open_database

from .clocks import TwoClocks


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
def store(opened: Callable[..., Database]) -> SQLiteStore:
    return SQLiteStore(opened(), "jobs")
