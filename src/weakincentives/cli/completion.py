"""Completes the names of queues in a shell."""

import os
import threading

import typer

__all__ = ["DEFAULT_URL", "queue_names"]

DEFAULT_URL = "sqlite:///wink.db"
PATIENCE = 1.0
"""How many seconds a shell waits for names; after that it offers none."""
MOST = 1_000


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the queues whose names begin so; none if that cannot be found out quickly."""
    url = ctx.params.get("url") or os.environ.get("WINK_URL") or DEFAULT_URL
    found: list[str] = []
    # A thread, because a server that does not answer must not hang the shell.
    looking = threading.Thread(target=_look, args=(str(url), incomplete, found), daemon=True)
    looking.start()
    looking.join(PATIENCE)
    return found[:MOST]


def _look(url: str, incomplete: str, found: list[str]) -> None:
    from .backends import connect_existing  # a shell completes options without it

    try:
        with connect_existing(url) as backend:
            found.extend(name for name in backend.queues() if name.startswith(incomplete))
    except Exception:  # noqa: BLE001 - there is nobody to tell: a shell shows names or nothing
        return
