"""Checks from a server's INFO that it does not lose messages."""

from collections.abc import Mapping

from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox import MailboxConnectionError

__all__ = ["check_server", "parse_info"]

logger = get_logger(__name__)

OLDEST = (7, 0)


def parse_info(text: bytes) -> dict[str, str]:
    """Read the fields of INFO."""
    lines = text.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and line[0] != "#")


def check_server(info: Mapping[str, str]) -> str | None:
    """Refuse a server that would lose messages; return a warning about one that may."""
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
        raise MailboxConnectionError(
            f"the server is Redis {version}; mailboxes need Redis 7.0 or newer, or Valkey"
        )
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory", "0") != "0" and policy != "noeviction":
        raise MailboxConnectionError(
            f"the server may evict messages: its maxmemory-policy is {policy}; "
            "set it to noeviction, or use a server without maxmemory"
        )
    if info.get("aof_enabled", "1") == "0":
        return (
            "messages are lost when the server stops: it has no append-only file (appendonly yes)"
        )
    return None
