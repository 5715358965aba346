"""The statements of ``queries.sql`` by name."""

import re
from collections.abc import Mapping
from importlib import resources

__all__ = ["FAR_US", "QUERIES", "read_script"]

FAR_US = 20 * 365 * 86_400 * 1_000_000
"""Microseconds: more than the ten years that a delay or a lease may last."""

# What stands within statements about replies, which are the same for every queue.
NESTED = ("reply_columns", "reply_read_until")
NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def read_script(name: str) -> str:
    """Return an SQL file of this package."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _load() -> Mapping[str, str]:
    """Return each statement on one line, because shorter texts are found faster in a cache."""
    _, *parts = NAME.split(read_script("queries.sql"))
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    for name in NESTED:
        texts = {each: text.replace(f"{{{name}}}", texts[name]) for each, text in texts.items()}
    return {
        name: " ".join(text.replace("{far}", str(FAR_US)).split()) for name, text in texts.items()
    }


QUERIES = _load()
