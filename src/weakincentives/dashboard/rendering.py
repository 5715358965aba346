"""Turns what a page shows into HTML, or into JSON for those who ask for that."""

from typing import Any
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from .config import DashboardConfig
from .formatting import age_text, change_text, count_text, time_text
from .sparkline import HEIGHT, WIDTH
from .survey import Survey
from .trouble import SEVERITIES

__all__ = ["Renderer", "wants_json"]


def wants_json(request: Request) -> bool:
    """Whether a program asks: the header Accept names JSON, and no HTML."""
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept


class Renderer:
    """The templates, and what all of them need."""

    def __init__(self, config: DashboardConfig, survey: Survey) -> None:
        self._config = config
        self._survey = survey
        self._templates = Environment(
            loader=PackageLoader("weakincentives.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "age": age_text,
            "change": change_text,
            "count": count_text,
            "time": time_text,
        }
        self._templates.globals |= {
            "prefix": config.prefix,
            "rights": {str(right) for right in config.rights},
            "has_token": config.token is not None,
            "interval": config.interval,
            "badge_class": {str(one): kind.name.lower() for one, kind in SEVERITIES.items()},
            "line_width": WIDTH,
            "line_height": HEIGHT,
        }

    def page(self, request: Request, name: str, view: Any, status: int = 200) -> Response:
        """Return a view as the page of this name, or as JSON with the same content."""
        if wants_json(request):
            return json_response(view, status)
        text = self._templates.get_template(f"{name}.html").render(
            view=view,
            state=self._survey.state,
            path=request.url.path,
            link=lambda **changes: _link(request, changes),
        )
        headers = {"Vary": "Accept"}
        return Response(text, status, headers, media_type="text/html")


def json_response(view: Any, status: int = 200) -> Response:
    """Return a view as JSON."""
    body = msgspec.json.encode(view)
    return Response(body, status, {"Vary": "Accept"}, media_type="application/json")


def _link(request: Request, changes: dict[str, object]) -> str:
    """Return the address of this page with other parameters; None takes one away."""
    kept = {name: value for name, value in request.query_params.items() if name not in changes}
    parameters = kept | {name: value for name, value in changes.items() if value is not None}
    return "?" + urlencode(parameters) if parameters else request.url.path
