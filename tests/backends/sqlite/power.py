"""A disk that forgets what was not synced, for SQLite's files."""

import random
from pathlib import Path
from typing import Any

import apsw


class Image:
    """What is surely on the disk of one file, and what only the system has yet."""

    def __init__(self) -> None:
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []

    def sync(self) -> None:
        for offset, data in self.pending:
            apply(self.durable, offset, data)
        self.pending.clear()

    def after_power_loss(self, chance: random.Random) -> bytes:
        """Return the file with an arbitrary part of the unsynced writes, one of them torn."""
        content = bytearray(self.durable)
        keep = chance.random()
        for offset, data in self.pending:
            if chance.random() < keep:
                if data is not None and chance.random() < 0.1:
                    data = data[: chance.randrange(len(data) + 1)]
                apply(content, offset, data)
        return bytes(content)


def apply(content: bytearray, offset: int, data: bytes | None) -> None:
    """Write, or with no data truncate."""
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class ForgetfulFile(apsw.VFSFile):
    def __init__(self, image: Image, name: Any, flags: list[int]) -> None:
        self.image = image
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self.image.pending.append((offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:
        self.image.pending.append((size, None))
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self.image.sync()


class ForgetfulDisk(apsw.VFS):
    """SQLite's default file system while it is entered."""

    def __init__(self) -> None:
        self.images: dict[str, Image] = {}
        super().__init__("forgetful", "unix")

    def __enter__(self) -> "ForgetfulDisk":
        apsw.set_default_vfs("forgetful")
        return self

    def __exit__(self, *exc: object) -> None:
        apsw.set_default_vfs("unix")
        self.unregister()

    def xOpen(self, name: Any, flags: list[int]) -> ForgetfulFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        image = self.images.setdefault(Path(path).name if path else "", Image())
        return ForgetfulFile(image, name, flags)

    def lose_power(self, to: Path, chance: random.Random) -> None:
        """Write what a machine would find after the power came back."""
        to.mkdir()
        for name in ("box.db", "box.db-wal"):
            (to / name).write_bytes(self.images[name].after_power_loss(chance))
