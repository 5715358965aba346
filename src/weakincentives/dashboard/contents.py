"""What of a message may be shown, and how."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from weakincentives.error_text import printable
from weakincentives.runtime.mailbox import SerializationError
from weakincentives.runtime.mailbox.envelope import Envelope, JsonSealer
from weakincentives.serde import Codec, EncodeError

from .config import DashboardConfig, Right
from .exact_json import read_exactly, written_exactly
from .hidden_fields import HiddenFields

__all__ = ["Contents", "ContentsReader"]

MOST_CHARACTERS = 20_000
PREVIEW = 160


@dataclass(frozen=True, slots=True)
class Contents:
    """The body of a message as far as it may be shown."""

    text: str | None
    """Indented JSON; None if it is hidden or cannot be read."""
    preview: str
    """Its beginning in one line."""
    raw: str | None
    """What is stored, unchanged; None if something in it is hidden, or it is the same text."""
    note: str | None
    """Why there is nothing to see, or not all of it."""
    is_whole: bool
    """Whether ``text`` is all of it, with nothing hidden or left out."""


class ContentsReader:
    """Turns bodies into text, and hides what the configuration says."""

    def __init__(self, config: DashboardConfig) -> None:
        self._may_show = Right.VIEW_BODIES in config.rights
        self._hidden = HiddenFields(config.redact)
        self._codec = Codec()
        self._sealer = JsonSealer(self._codec, sys.maxsize)

    @property
    def may_show(self) -> bool:
        """Whether any body may be shown."""
        return self._may_show

    def of_body(self, body: Any, *, whole: bool = False) -> Contents:
        """Return the contents of a body: JSON that is not decoded, or an object."""
        if not self._may_show:
            return Contents(None, "", None, "Bodies are not shown here.", False)
        try:
            raw = bytes(body) if isinstance(body, msgspec.Raw) else self._codec.encode(body)
        except EncodeError as error:
            return Contents(None, "", None, f"It cannot be shown: {printable(str(error))}", False)
        try:
            value = read_exactly(raw)
        except (ValueError, RecursionError) as error:
            return self._unread(raw, f"It is not JSON: {printable(str(error))}")
        shown = self._hidden.applied(value)
        is_hidden = shown != value
        text = written_exactly(shown)
        is_cut = not whole and len(text) > MOST_CHARACTERS
        note = None
        if is_cut:
            note = f"The first {MOST_CHARACTERS:,} of {len(text):,} characters."
        elif is_hidden:
            note = "Some of it is hidden here."
        as_stored = raw.decode("utf-8", "replace")
        return Contents(
            text=text[:MOST_CHARACTERS] if is_cut else text,
            preview=_preview(text),
            raw=None if is_hidden or is_cut else printable(as_stored),
            note=note,
            is_whole=not is_hidden and not is_cut,
        )

    def of_bytes(self, payload: bytes) -> Contents:
        """Return the contents of a payload that a worker could not decode."""
        if not self._may_show:
            return Contents(None, "", None, "Bodies are not shown here.", False)
        envelope = readable_envelope(self._sealer.open, payload)
        if envelope is None:
            return self._unread(payload, "It could not be decoded.")
        # Its body is JSON, though not what the worker expects, and can be mended.
        found = self.of_body(envelope.body, whole=True)
        return replace(found, note=" ".join(filter(None, ("It could not be decoded.", found.note))))

    def value(self, body: Any) -> Any:
        """Return what may be searched in a body; nothing hidden can be found out by searching."""
        if not self._may_show:
            return None
        try:
            plain = msgspec.json.decode(body) if isinstance(body, msgspec.Raw) else body
            return self._hidden.applied(msgspec.to_builtins(plain, str_keys=True))
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
            return None

    def attributes(self, attributes: Mapping[str, str] | None) -> dict[str, str]:
        """Return the attributes of a message as far as they may be shown."""
        if not self._may_show:
            return {}
        return {printable(name): printable(value) for name, value in (attributes or {}).items()}

    def _unread(self, raw: bytes, note: str) -> Contents:
        if self._hidden:
            # What is to be hidden cannot be found in it.
            return Contents(None, "", None, f"{note} Its bytes are hidden here.", False)
        shown = printable(raw[:MOST_CHARACTERS].decode("utf-8", "backslashreplace"))
        return Contents(None, _preview(shown), shown, note, False)


def readable_envelope(open_: Any, payload: Any) -> Envelope | None:
    """Return the envelope of a payload, or None if it is not one."""
    try:
        found: Envelope = open_(payload)
    except SerializationError:
        return None
    return found


def _preview(text: str) -> str:
    line = " ".join(text[: 4 * PREVIEW].split())
    return line if len(line) <= PREVIEW else line[: PREVIEW - 1] + "…"
