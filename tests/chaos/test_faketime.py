"""The library that moves clocks is found, and every server that is here goes by it."""

import platform
import sys
import time
from pathlib import Path

import pytest

from chaos.faketime import FAKETIME, MovedClock, faketime_library
from testkit.servers import Standalone, servers_available
from tests.services import missing

HOUR = 3600

on_its_platform = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="NOT RUN: its wheel has a library for Linux on x86-64 alone",
)


def test_the_environment_names_it_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FAKETIME, str(tmp_path / "mine.so"))
    assert faketime_library() == tmp_path / "mine.so"


@on_its_platform
def test_it_is_found_without_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FAKETIME, raising=False)
    library = faketime_library()
    assert isinstance(library, Path), library
    assert library.exists()
    assert "libfaketime" not in sys.modules


@on_its_platform
def test_every_server_goes_by_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library, binaries = faketime_library(), servers_available().values()
    if not binaries or isinstance(library, str):
        missing("a server, or libfaketime")
    for binary in binaries:
        monkeypatch.setenv("WINK_REDIS_SERVER", str(binary))
        clock = MovedClock(tmp_path, library)
        moved = clock.server()
        assert moved is not None, binary
        with Standalone(moved) as server:
            for hours in (0, 2, -5):
                clock.set(hours * HOUR)
                off = int(server.command("TIME")[0]) - time.time()
                assert abs(off - hours * HOUR) < 60
