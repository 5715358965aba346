"""Turns exceptions into text that is safe to store and show: bounded, printable, redacted."""

import itertools
import re
import reprlib
import traceback
import unicodedata
from collections import deque
from collections.abc import Iterator
from types import TracebackType

from .redaction import redacted

__all__ = [
    "described",
    "error_type",
    "is_library_file",
    "one_line",
    "own_place_of",
    "place_of",
    "printable",
    "stack_of",
    "type_name",
    "with_article",
]

MAX_TEXT = 2_000
MAX_STACK = 8_000
MAX_LINE = 500
MAX_LINES = 1_000
MAX_NAME = 200

FRAMES = 30
LINKS = 1_000
"""The most causes that are followed from one error."""
OUTERMOST, INNERMOST = 3, 5
"""How many errors of a long chain are shown at each end."""
MEMBERS, NOTES, DEPTH = 5, 5, 3

LIBRARIES = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python3(\.\d+)?/|/src/weakincentives/|^<frozen ",
    re.I,
)
"""Files that are not the user's own: installed packages, Python itself, and this library."""

# Escape sequences, line ends and direction marks would let a text control the terminal.
UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def printable(text: str) -> str:
    """Return the text with every character that could control a terminal written as an escape."""
    if text.isprintable():
        return text
    return "".join(
        char if unicodedata.category(char) not in UNPRINTABLE else _escaped(char) for char in text
    )


def type_name(error: BaseException) -> str:
    """Return the short name of an error's type."""
    return _named(type(error).__name__)


def error_type(error: BaseException) -> str:
    """Return the full name of an error's type."""
    return f"{_named(type(error).__module__)}.{_named(type(error).__qualname__)}"


def described(error: BaseException) -> str:
    """Return an error's message, redacted and cut to `MAX_TEXT`."""
    return _start(_clean(_text_of(error), 2 * MAX_TEXT), MAX_TEXT)


def one_line(error: BaseException) -> str:
    """Return an error's type and message as one line that is safe to show."""
    text = printable(described(error))
    return f"{type_name(error)}: {text}" if text else type_name(error)


def place_of(error: BaseException) -> str | None:
    """Return the file, line and function that raised an error; None if they are unknown."""
    try:
        (frame,) = _frames(error.__traceback__, 1)
    except (Exception, SystemExit):  # noqa: BLE001 - no traceback, or one that cannot be read
        return None
    return _place(frame.filename, frame.lineno, frame.name)


def own_place_of(error: BaseException) -> str | None:
    """Return the innermost place of the user's own code; where it was raised if there is none."""
    try:
        # Not _frames(): that reads the lines of all files, for each failure that is retried.
        walked = deque(traceback.walk_tb(error.__traceback__), FRAMES)
        places = [(frame.f_code, line) for frame, line in walked]
    except (Exception, SystemExit):  # noqa: BLE001 - a traceback that cannot be read
        return None
    own = [place for place in places if not is_library_file(place[0].co_filename)]
    for code, line in (own or places)[-1:]:
        return _place(code.co_filename, line, code.co_name)
    return None


def is_library_file(filename: str) -> bool:
    """Return whether a file is not the user's own."""
    return LIBRARIES.search(filename.replace("\\", "/")) is not None


def _place(filename: str, line: int | None, function: str) -> str:
    file = filename.replace("\\", "/").rpartition("/")[2]
    return printable(f"{file}:{line} in {function}"[:MAX_NAME])


def stack_of(error: BaseException) -> str:
    """Return an error's traceback, redacted; if it is too long, only its end."""
    text = "\n".join(itertools.islice(_stack(error, ""), MAX_LINES))
    return text if len(text) <= MAX_STACK else "…" + text[1 - MAX_STACK :]


def _stack(error: BaseException, indent: str, depth: int = 0) -> Iterator[str]:
    """Yield the lines of a traceback, causes first, in the order in which Python shows them."""
    chain, left_out = _chain(error)
    frames = max(FRAMES // (len(chain) * (MEMBERS**depth)), 2)
    for number, (link, how) in enumerate(chain):
        if left_out and number == INNERMOST:
            yield f"{indent}… {left_out} errors in between …"
        yield from _lines(link, indent, frames)
        yield from _member_lines(link, indent, depth)
        if how:
            yield f"{indent}{how}"


def _chain(error: BaseException) -> tuple[list[tuple[BaseException, str]], int]:
    """Return an error and its causes, oldest first, and how many were left out."""
    links = [(error, "")]
    seen = {id(error)}
    while len(links) < LINKS:
        link = links[-1][0]
        if link.__cause__ is not None:
            before, how = link.__cause__, "which caused:"
        elif link.__context__ is not None and not link.__suppress_context__:
            before, how = link.__context__, "and while that was handled:"
        else:
            break
        if id(before) in seen:
            break
        seen.add(id(before))
        links.append((before, how))
    left_out = max(len(links) - OUTERMOST - INNERMOST, 0)
    if left_out:
        del links[OUTERMOST:-INNERMOST]
    return links[::-1], left_out


def _lines(error: BaseException, indent: str, count: int) -> Iterator[str]:
    trace = error.__traceback__
    if trace is not None:
        yield f"{indent}Traceback (most recent call last):"
        try:
            frames = _frames(trace, count)
        except (Exception, SystemExit):  # noqa: BLE001 - such as a source that cannot be read
            frames = []
            yield f"{indent}  (it could not be read)"
        for frame in frames:
            yield indent + printable(
                f'  File "{frame.filename[:MAX_LINE]}", line {frame.lineno}, '
                f"in {frame.name[:MAX_NAME]}"
            )
            if frame.line:
                yield f"{indent}    {printable(_clean(frame.line, MAX_LINE))}"
    said = printable(described(error))
    yield f"{indent}{error_type(error)}" + (f": {said}" if said else "")
    for note in _notes(error):
        yield f"{indent}  {note}"


def _member_lines(group: BaseException, indent: str, depth: int) -> Iterator[str]:
    if not isinstance(group, BaseExceptionGroup):
        return
    members = group.exceptions
    shown = members[:MEMBERS] if depth < DEPTH else ()
    for number, member in enumerate(shown, 1):
        yield f"{indent}  {number} of {len(members)}:"
        yield from _stack(member, indent + "    ", depth + 1)
    if len(members) > len(shown):
        yield f"{indent}  … {len(members) - len(shown)} more"


def _frames(trace: TracebackType | None, count: int) -> list[traceback.FrameSummary]:
    return traceback.StackSummary.extract(traceback.walk_tb(trace), limit=-count)


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", None)
    if not isinstance(notes, list | tuple):
        return []
    return [printable(_clean(note, MAX_LINE)) for note in notes[:NOTES] if isinstance(note, str)]


def _text_of(error: BaseException) -> str:
    """Return an error's message; huge arguments are cut before they are turned into text."""
    try:
        how, args = type(error).__str__, error.args
        if how is BaseException.__str__:
            return _argument(args[0]) if len(args) == 1 else _SHORT.repr(args) if args else ""
        if how is KeyError.__str__ and len(args) == 1:
            return _SHORT.repr(args[0])
        if isinstance(error, BaseExceptionGroup) and how is BaseExceptionGroup.__str__:
            many = "" if len(error.exceptions) == 1 else "s"
            return f"{error.message[:MAX_TEXT]} ({len(error.exceptions)} sub-exception{many})"
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a __str__ that raises must not hide the failure
        return "(its text could not be read)"


def _argument(value: object) -> str:
    if type(value) is str:
        return value
    return _SHORT.repr(value) if isinstance(value, _BULKY) else str(value)


class _ShortRepr(reprlib.Repr):
    """Shows values as ``repr`` does, without building much more text than `MAX_TEXT`."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 6
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 100
        self.maxstring = self.maxlong = self.maxother = MAX_TEXT

    def repr_bytes(self, value: bytes | bytearray, _level: int) -> str:
        """Show the first `MAX_TEXT` bytes; they are cut before they are escaped."""
        return repr(value[:MAX_TEXT]) + ("…" if len(value) > MAX_TEXT else "")

    repr_bytearray = repr_bytes


_SHORT = _ShortRepr()
_BULKY = (bytes, bytearray, list, tuple, dict, set, frozenset, int)


def _clean(text: str, limit: int) -> str:
    """Return the text cut to ``limit``, redacted, and encodable as UTF-8."""
    # Not text[:limit], because a subclass of str may override __getitem__.
    cut = str.__getitem__(text, slice(limit))
    # JSON cannot contain lone surrogates.
    return redacted(cut.encode("utf-8", "replace").decode("utf-8"))


def _start(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _named(name: object) -> str:
    return printable(name[:MAX_NAME]) if isinstance(name, str) else "?"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def with_article(noun: str) -> str:
    """Return a name with "a" or "an" before it."""
    return f"{'an' if noun[:1] in tuple('aeiouAEIOU') else 'a'} {noun}"
