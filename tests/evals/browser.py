"""A real browser without a window, and its pictures as pixels."""

import os
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

from tests.services import missing

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # in a container the tests are root's
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--enable-logging=stderr",
    "--disable-background-networking",
)

Pixel = tuple[int, int, int]


def find_browser() -> str:
    for name in NAMES:
        if path := shutil.which(name):
            return path
    return missing(f"none of {', '.join(NAMES)} is on PATH (Debian: chromium)")


def photographed(page: Path, width: int, height: int, *flags: str) -> tuple["Picture", str]:
    """Return what a browser shows of a page, and what it wrote to its console."""
    picture = page.with_suffix(".png")
    done = subprocess.run(
        [
            find_browser(),
            *FLAGS,
            *flags,
            f"--user-data-dir={page.parent / 'profile'}",
            f"--window-size={width},{height}",
            f"--screenshot={picture}",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "HOME": str(page.parent)},
    )
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Picture(picture.read_bytes()), "\n".join(console)


class Picture:
    """The pixels of a PNG, as browsers write them: eight bits, no interlacing."""

    def __init__(self, data: bytes) -> None:
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        chunks = list(self._chunks(data))
        header = struct.unpack(">IIBBBBB", chunks[0][1])
        self.width, self.height = header[0], header[1]
        assert header[2] == 8
        assert header[6] == 0
        self._depth = {2: 3, 6: 4}[header[3]]
        packed = zlib.decompress(b"".join(body for kind, body in chunks if kind == b"IDAT"))
        self._rows = self._unfiltered(packed)

    def row(self, y: int) -> list[Pixel]:
        row, depth = self._rows[y], self._depth
        return [(row[x], row[x + 1], row[x + 2]) for x in range(0, len(row), depth)]

    @staticmethod
    def _chunks(data: bytes):
        at = 8
        while at < len(data):
            (size,) = struct.unpack_from(">I", data, at)
            yield data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
            at += size + 12

    def _unfiltered(self, packed: bytes) -> list[bytearray]:
        depth, stride = self._depth, self.width * self._depth
        rows, above = [], bytearray(stride)
        for start in range(0, len(packed), stride + 1):
            kind, row = packed[start], bytearray(packed[start + 1 : start + 1 + stride])
            for x in range(stride if kind else 0):
                left = row[x - depth] if x >= depth else 0
                corner = above[x - depth] if x >= depth else 0
                row[x] = (row[x] + self._predicted(kind, left, above[x], corner)) & 255
            rows.append(row)
            above = row
        return rows

    @staticmethod
    def _predicted(kind: int, left: int, up: int, corner: int) -> int:
        if kind < 4:
            return (0, left, up, (left + up) // 2)[kind]
        guess = left + up - corner
        return min((left, up, corner), key=lambda value: abs(guess - value))
