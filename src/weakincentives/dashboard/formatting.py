"""How times, numbers and rates are written for people."""

from datetime import UTC, datetime

__all__ = ["age_text", "change_text", "count_text", "time_text"]

UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))
MINUS = "\N{MINUS SIGN}"


def age_text(seconds: float | None) -> str:
    """Return a time span in its largest sensible unit."""
    if seconds is None:
        return ""
    for unit, length in UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 or seconds == 0 else "< 1 s"


def count_text(number: int | None) -> str:
    """Return a number with its thousands apart."""
    return "" if number is None else f"{number:,}"


def change_text(per_second: float | None) -> str:
    """Return a rate with its sign, for each second or, if it is slow, for each minute."""
    if per_second is None:
        return ""
    if abs(per_second) < 1 / 120:
        return "0"
    sign, size = ("+" if per_second > 0 else MINUS), abs(per_second)
    if size < 0.5:
        return f"{sign}{60 * size:.0f}/min"
    return f"{sign}{size:,.0f}/s" if size >= 10 else f"{sign}{size:.1f}/s"


def time_text(at: float | datetime | None) -> str:
    """Return a time in UTC."""
    if at is None:
        return ""
    if not isinstance(at, datetime):
        at = datetime.fromtimestamp(at, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}"
