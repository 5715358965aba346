"""What `wink doctor` finds: something that will hurt, and how to mend it."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that hurts now (an error) or will one day (a warning)."""

    severity: Literal["error", "warning"]
    title: str
    fact: str
    """What was seen."""
    fix: str
    """What to do about it."""
