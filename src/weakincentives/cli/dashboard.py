"""``wink dashboard``: look into the queues with a browser."""

import hashlib
import ipaddress
import os
import secrets
import socket
from pathlib import Path
from typing import Annotated

import typer

from weakincentives.contrib.mailbox.urls import redacted
from weakincentives.errors import WinkError
from weakincentives.runtime.mailbox import InvalidParameterError

from . import output
from .backends import connect_existing
from .log_output import LogLevel, configure_logging
from .queues import DEFAULT_URL, UrlOption
from .worker import LogJsonOption, LogLevelOption

__all__ = ["register"]

TOKEN_VARIABLE = "WINK_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
STREAM_SECONDS = 3
"""How long open pages may keep the server from ending."""


def register(app: typer.Typer) -> None:
    """Add the command to ``wink``."""
    app.command()(dashboard)


def dashboard(
    url: UrlOption = DEFAULT_URL,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = (
        8400
    ),
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="Allow replay, discard, purge, pause or send; can be repeated. Without it the "
            "dashboard changes nothing.",
            metavar="RIGHT",
        ),
    ] = None,
    hide_bodies: Annotated[
        bool, typer.Option("--hide-bodies", help="Show no bodies, attributes or answers.")
    ] = False,
    redact: Annotated[
        list[str] | None,
        typer.Option(
            help="Never show what is at this path of a body, such as card.number or *.email; can "
            "be repeated.",
            metavar="PATH",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A host name under which browsers may ask for it; can be repeated.", metavar="NAME"
        ),
    ] = None,
    prefix: Annotated[
        str, typer.Option(help="The path below which a proxy serves it, such as /wink.")
    ] = "",
    trace_url: Annotated[
        str | None,
        typer.Option(
            help="The address of a trace, for links: https://traces.example/{trace_id}",
            metavar="URL",
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="The file for counts over time; default: one for each URL."
        ),
    ] = None,
    token: Annotated[
        bool,
        typer.Option(
            "--token/--no-token",
            help=f"Ask for a token, that of {TOKEN_VARIABLE} or a new one. Only a dashboard that "
            "changes nothing and listens on this machine alone can do without.",
        ),
    ] = True,
    log_level: LogLevelOption = LogLevel.INFO,
    log_json: LogJsonOption = False,
) -> None:
    """Look into the queues with a browser, and act on what you see if that is allowed."""
    try:
        import uvicorn

        from weakincentives.dashboard import Dashboard, DashboardConfig, Right
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("weakincentives"):
            raise
        raise WinkError(
            f"wink dashboard needs the package {error.name}: "
            "pip install 'weakincentives[dashboard]'"
        ) from error
    configure_logging(log_level, log_json)
    if not token and not _is_loopback(host):
        raise InvalidParameterError("--no-token is possible only with a --host of this machine")
    actions = {right.value: right for right in Right if right.is_action}
    wrong = [name for name in allow or () if name not in actions]
    if wrong:
        raise InvalidParameterError(f"--allow takes {', '.join(actions)}, not {wrong[0]!r}")
    rights = {actions[name] for name in allow or ()}
    config = DashboardConfig(
        rights=frozenset(rights if hide_bodies else {*rights, Right.VIEW_BODIES}),
        token=(os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)) if token else None,
        hosts=tuple({*LOOPBACK, *_names_of(host), *(allow_host or ())}),
        prefix=prefix,
        redact=tuple(redact or ()),
        trace_url=trace_url,
        history=history or _history_of(url),
    )
    with (
        _listening(host, port) as listener,
        connect_existing(url) as backend,
        Dashboard(backend, config) as app,
    ):
        _print_link(listener, host, config.prefix, config.token)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=STREAM_SECONDS,
            )
        )
        server.run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    # Before anything else: a port in use is found before a link is printed.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise WinkError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def _print_link(listener: socket.socket, host: str, prefix: str, token: str | None) -> None:
    port = listener.getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    path = f"{prefix}/" if token is None else f"{prefix}/login#{token}"
    output.print_line(f"http://{name}:{port}{path}")


def _names_of(host: str) -> list[str]:
    """Return the names under which browsers reach this address."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared with, not listened on
        return [socket.gethostname()]
    return [f"[{host}]" if ":" in host else host]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _history_of(url: str) -> Path:
    """Return the file for the counts of a backend, where programs keep their state."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    name = hashlib.sha256(redacted(url).encode()).hexdigest()[:16]
    return Path(state) / "weakincentives" / f"dashboard-{name}.db"
