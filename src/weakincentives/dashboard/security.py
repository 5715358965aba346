"""Who may ask for what: checks every request before anything else sees it."""

import hashlib
import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weakincentives.runtime.mailbox import InvalidParameterError

from .config import DashboardConfig

__all__ = ["COOKIE", "Guard", "Refusal", "cookie_for", "is_token", "refusal_of"]

COOKIE = "wink_dashboard"
LONGEST_FORM = 4 * 1024 * 1024
"""The most bytes that a request may send."""
FREE = ("/login", "/static/")
"""What can be asked for without the token: the page that takes it, and what that looks like."""
READING = frozenset({"GET", "HEAD"})

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with that, browsers hide the origin of our own forms too.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Refusal(NamedTuple):
    """Why a request is not served."""

    status: int
    reason: str


def refusal_of(
    config: DashboardConfig, method: str, path: str, headers: Mapping[str, str]
) -> Refusal | None:
    """Return why a request must not be served, or None if it may be.

    ``headers`` have lower-case names; ``path`` is without the prefix.
    """
    host = headers.get("host", "")
    if _name_of(host) not in {allowed.lower() for allowed in config.hosts}:
        # A page of another site whose name was made to point here must not read or do anything.
        return Refusal(421, "this dashboard is not served under that host name (see --allow-host)")
    origin = headers.get("origin")
    has_bearer = _bearer(headers) is not None
    if method not in READING:
        # Browsers name the origin of every POST; a program with the token in a header need not.
        if origin is None and not has_bearer:
            return Refusal(403, "the request does not say where it comes from")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return Refusal(403, "the request comes from another site")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return Refusal(403, "the request comes from another site")
    if path.startswith(FREE) or _is_known(config.token, headers):
        return None
    return Refusal(401, "this needs the token of the dashboard")


def _name_of(host: str) -> str:
    """Return a host without its port."""
    host = host.lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _is_known(token: str | None, headers: Mapping[str, str]) -> bool:
    if token is None:
        return True
    bearer = _bearer(headers)
    if bearer is not None:
        return is_token(token, bearer)
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return False
    return cookie is not None and _equal(cookie.value, cookie_for(token))


def _bearer(headers: Mapping[str, str]) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None


def is_token(token: str, offered: str) -> bool:
    """Compare in a time that says nothing about the token."""
    return _equal(offered, token)


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def cookie_for(token: str) -> str:
    """Return what a browser keeps instead of the token, which cannot be found from it."""
    return hmac.new(token.encode(), b"weakincentives dashboard", hashlib.sha256).hexdigest()


class Guard:
    """Refuses what `refusal_of` says, and gives every response its headers."""

    def __init__(self, app: ASGIApp, config: DashboardConfig) -> None:
        self._app = app
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets here
        prefix = self._config.prefix
        if prefix and scope["path"].startswith(f"{prefix}/"):
            # Starlette then leaves it out of the path; a proxy may have removed it already.
            scope = {**scope, "root_path": prefix}
        root, path = scope.get("root_path", ""), scope["path"]
        if root and path.startswith(f"{root}/"):
            path = path.removeprefix(root)
        headers = Headers(scope=scope)
        refusal = refusal_of(self._config, scope["method"], path, headers)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    sent[name] = value
                sent.setdefault("Cache-Control", "no-store")
            await send(message)

        app = self._app if refusal is None else _refused(refusal, headers, prefix)
        await app(scope, _bounded(receive), send_guarded)


def _bounded(receive: Receive) -> Receive:
    """Return a ``receive`` that ends if more comes than was announced or is allowed."""
    received = 0

    async def receive_bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > LONGEST_FORM:
            raise InvalidParameterError(f"a request may have at most {LONGEST_FORM} bytes")
        return message

    return receive_bounded


def _refused(refusal: Refusal, headers: Mapping[str, str], prefix: str) -> Response:
    wants_html = "text/html" in headers.get("accept", "")
    if refusal.status == 401 and wants_html:
        return RedirectResponse(f"{prefix}/login", status_code=303)
    if "application/json" in headers.get("accept", ""):
        return JSONResponse({"error": refusal.reason}, status_code=refusal.status)
    return PlainTextResponse(refusal.reason + "\n", status_code=refusal.status)
