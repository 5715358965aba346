"""The addresses of the dashboard: each takes a request apart and shows a view."""

from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from weakincentives.runtime.mailbox import InvalidParameterError

from .overview import overview
from .parts import parts_of

__all__ = ["ROUTES", "form_of"]


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form; of several with one name, the last."""
    try:
        fields = parse_qsl((await request.body()).decode(), keep_blank_values=True)
    except ValueError as error:
        raise InvalidParameterError(f"the form cannot be read: {error}") from error
    return dict(fields)


async def overview_page(request: Request) -> Response:
    """Show all queues."""
    parts, asked = parts_of(request), request.query_params
    view = overview(
        parts.survey,
        parts.history,
        find=asked.get("find", ""),
        sort=asked.get("sort", "trouble"),
        page=_number(asked.get("page")),
    )
    return parts.renderer.page(request, "overview", view)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text[:9].isdigit() else 1


ROUTES: list[BaseRoute] = [
    Route("/", overview_page),
]
