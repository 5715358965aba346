"""The fingerprint of a dead letter: what letters of the same failure have in common."""

import re
from typing import Any, NamedTuple

from weakincentives.error_text import is_library_file
from weakincentives.ids import derived_id

from .letter import DeadLetter

__all__ = ["Fingerprint", "fingerprint_of"]

FRAME = re.compile(r'^ *File "(?P<file>.*)", line \d+, in (?P<function>.*)$', re.MULTILINE)
LAST_TRACEBACK = "Traceback (most recent call last):"
SHOWN_PARTS = 2
"""A file is shown with its directory, because many are called ``handlers.py``."""
ID_LENGTH = 8


class Fingerprint(NamedTuple):
    """The type of an error, and the innermost frame of the user's own code.

    The frame has no line number, because every edit above it would change that.
    """

    error_type: str
    frame: str | None

    @property
    def id(self) -> str:
        """A short name for it, the same in every process."""
        return derived_id("fingerprint", self.error_type, self.frame or "")[:ID_LENGTH]


def fingerprint_of(letter: DeadLetter[Any]) -> Fingerprint:
    """Return the fingerprint of a letter; without a traceback, only the type counts."""
    return Fingerprint(letter.last_error_type, _own_frame(letter.traceback or ""))


def _own_frame(traceback: str) -> str | None:
    """Return the last frame outside of libraries in the last traceback of the text."""
    # Causes come first, so the last traceback is that of the error itself.
    frames = list(FRAME.finditer(traceback, max(traceback.rfind(LAST_TRACEBACK), 0)))
    if not frames:
        return None
    files = [frame["file"].replace("\\", "/") for frame in frames]
    own = [index for index, file in enumerate(files) if not is_library_file(file)]
    index = own[-1] if own else len(frames) - 1
    place = "/".join(files[index].split("/")[-SHOWN_PARTS:])
    return f"{place} in {frames[index]['function']}"
