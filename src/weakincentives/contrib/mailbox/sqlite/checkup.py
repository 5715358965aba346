"""Looks for what will hurt in a SQLite file and in the place where it is kept."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw

from weakincentives.contrib.mailbox.finding import Finding
from weakincentives.contrib.mailbox.urls import split_url

from .backend import SQLiteBackend, options_in, path_of
from .connection import JOURNAL_BYTES

__all__ = ["findings"]

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "glusterfs", "lustre", "9p"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone"),
    *("beegfs", "gfs2", "ocfs2", "vboxsf", "drvfs", "prl_fs"),
}
IN_MEMORY = {"tmpfs", "ramfs"}
LITTLE_SPACE, NO_SPACE = 2**30, 100 * 2**20
LARGE_JOURNAL = 4 * JOURNAL_BYTES


def findings(
    backend: SQLiteBackend, url: str, queues: Callable[[], Sequence[str]]
) -> Iterator[Finding]:
    """Yield what will hurt."""
    parts = split_url(url)
    place, durability = Path(path_of(url, parts)).resolve(), options_in(url, parts)[0]
    if durability != "full":
        yield Finding(
            "warning",
            "the last messages are lost if the machine loses power",
            f"the URL says durability={durability}",
            "leave it out, unless they may be lost",
        )
    yield from _of_file_system(place, file_system_of(place))
    yield from _of_rights(place)
    yield from _of_space(place, shutil.disk_usage(place.parent).free)
    yield from _of_journal(place)


def file_system_of(place: Path) -> str | None:
    """Return the type of the file system that a file is on; None if that is unknown."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None  # not Linux
    best, kind = -1, None
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, what = before.split(), after.split()
        if len(fields) < 5 or not what:
            continue
        mount = fields[4].replace("\\040", " ")
        # A later mount at the same point covers an earlier one.
        if len(mount) >= best and place.is_relative_to(mount):
            best, kind = len(mount), what[0]
    return kind


def _of_file_system(place: Path, kind: str | None) -> Iterator[Finding]:
    if kind in NETWORK:
        yield Finding(
            "error",
            "the file is on a network file system, where locks do not hold and files break",
            f"{place} is on {kind}",
            "move it to a local disk, or use Redis for processes on several machines",
        )
    elif kind in IN_MEMORY:
        yield Finding(
            "warning",
            "all messages are lost when the machine restarts",
            f"{place} is on {kind}, which is memory",
            "move it to a disk",
        )


def _of_rights(place: Path) -> Iterator[Finding]:
    for one in (place.parent, place):
        if not os.access(one, os.W_OK):
            yield Finding(
                "error",
                "this user cannot write, so nothing can be sent or received",
                f"{one} is not writable",
                f"give the user of this process the right to write {one}",
            )


def _of_space(place: Path, free: int) -> Iterator[Finding]:
    if free < LITTLE_SPACE:
        yield Finding(
            "error" if free < NO_SPACE else "warning",
            "the disk is nearly full; then nothing can be sent or received",
            f"{free // 2**20:,} MiB are free where {place} is",
            "make room, or move the file to another disk",
        )


def _of_journal(place: Path) -> Iterator[Finding]:
    """Find a journal that grows, and readers that keep it from being emptied."""
    journal = place.with_name(f"{place.name}-wal")
    size = journal.stat().st_size if journal.exists() else 0
    if size <= LARGE_JOURNAL:
        return
    connection = apsw.Connection(str(place), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        _, frames, done = next(connection.execute("PRAGMA wal_checkpoint(PASSIVE)"))
    except apsw.Error:
        frames = done = 0
    finally:
        connection.close()
    if done < frames:
        yield Finding(
            "warning",
            "a process reads the file for so long that its journal cannot be emptied",
            f"{journal} has {size // 2**20:,} MiB; {frames - done:,} pages cannot be written back",
            f"end the transaction or the backup that is open: fuser -v {place}",
        )
    else:
        yield Finding(
            "warning",
            "the journal has grown large",
            f"{journal} has {size // 2**20:,} MiB",
            "it is emptied once all processes close the file; restart the workers one by one",
        )
