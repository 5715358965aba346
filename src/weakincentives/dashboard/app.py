"""The dashboard as an ASGI application."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from weakincentives.dispatch import Dispatcher
from weakincentives.error_text import one_line
from weakincentives.errors import WinkError
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    ReplyNotFoundError,
    UnsupportedOperationError,
)
from weakincentives.runtime.mailbox.seam.backend import Backend

from . import pages
from .actions import RightMissingError
from .audit import Audit
from .backend_calls import BackendCalls, BackendTooSlowError, TooManyCallsError
from .config import DashboardConfig
from .contents import ContentsReader
from .history import History
from .letters import LetterNotFoundError, LetterScans
from .live import Announcer
from .parts import DashboardParts, parts_of
from .passes import RunningPasses, TooManyPassesError
from .rendering import Renderer
from .security import COOKIE, Guard, cookie_for, is_token
from .survey import Survey

__all__ = ["Dashboard"]

STATIC = Path(__file__).parent / "static"
STATUS = {
    InvalidParameterError: 400,
    ReplyNotFoundError: 404,
    LetterNotFoundError: 404,
    RightMissingError: 403,
    TooManyPassesError: 503,
    UnsupportedOperationError: 501,
    BackendTooSlowError: 504,
    TooManyCallsError: 503,
}


class Dashboard:
    """Shows the queues of a backend to browsers and programs; an ASGI application.

    It starts with its server, or with the first request if it is mounted in another application.
    Close it before the backend.
    """

    def __init__(
        self,
        backend: Backend,
        config: DashboardConfig | None = None,
        *,
        dispatcher: Dispatcher | None = None,
    ) -> None:
        """``dispatcher`` gets a `DashboardAction` for everything that is done here."""
        config = config or DashboardConfig()
        history = History(config.history)
        survey = Survey(backend, history, config.interval)
        self._parts = DashboardParts(
            config=config,
            backend=backend,
            history=history,
            survey=survey,
            announcer=Announcer(survey),
            renderer=Renderer(config, survey),
            reader=ContentsReader(config),
            calls=BackendCalls(),
            scans=LetterScans(),
            passes=RunningPasses(),
            audit=Audit(dispatcher),
        )
        self._lock = threading.Lock()
        self._started = False
        self._guard = Guard(_application(self, self._parts), config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            self.start()
        await self._guard(scope, receive, send)

    def start(self) -> None:
        """Begin to look at the queues; later calls do nothing."""
        with self._lock:
            if self._started:
                return
            self._started = True
        self._parts.survey.start()

    def close(self) -> None:
        """End all streams and threads; passes over dead letters end before their next letter."""
        self._parts.passes.stop()
        self._parts.survey.stop()
        self._parts.announcer.close()
        self._parts.calls.close()
        self._parts.history.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _application(dashboard: Dashboard, parts: DashboardParts) -> Starlette:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        dashboard.start()
        yield
        parts.announcer.close()

    app = Starlette(
        routes=[
            Route("/login", login, methods=["GET", "POST"]),
            Route("/logout", logout, methods=["POST"]),
            Route("/events", events),
            *pages.ROUTES,
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={WinkError: _show_error, HTTPException: _show_error},
        lifespan=lifespan,
    )
    app.state.parts = parts
    return app


async def events(request: Request) -> Response:
    """Tell an open page whenever there is something new to fetch."""
    return parts_of(request).announcer.respond()


async def login(request: Request) -> Response:
    """Take the token, and give a cookie for it."""
    parts = parts_of(request)
    token, prefix = parts.config.token, parts.config.prefix
    if token is None:
        return RedirectResponse(f"{prefix}/", status_code=303)
    if request.method == "GET":
        return parts.renderer.page(request, "login", {"wrong": False})
    form = await pages.form_of(request)
    if not is_token(token, form.get("token", "")):
        return parts.renderer.page(request, "login", {"wrong": True}, 401)
    response = RedirectResponse(f"{prefix}/", status_code=303)
    response.set_cookie(
        COOKIE,
        cookie_for(token),
        path=f"{prefix}/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


async def logout(request: Request) -> Response:
    """Take the cookie away."""
    prefix = parts_of(request).config.prefix
    response = RedirectResponse(f"{prefix}/login", status_code=303)
    response.delete_cookie(COOKIE, path=f"{prefix}/")
    return response


async def _show_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        status, text = error.status_code, str(error.detail)
    else:
        status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 502)
        text = str(error) or one_line(error)
    return parts_of(request).renderer.page(request, "error", {"error": text}, status)
