"""The addresses of the dashboard: each takes a request apart and shows a view."""

import re
from functools import partial
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from weakincentives.runtime.mailbox import InvalidParameterError

from .actions import Actor
from .job_page import job_page
from .overview import overview
from .parts import parts_of
from .queue_page import queue_page
from .rendering import json_response, wants_json

__all__ = ["ROUTES", "form_of"]

ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form; of several with one name, the last."""
    return dict(await fields_of(request))


async def fields_of(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form, in their order."""
    try:
        return parse_qsl((await request.body()).decode(), keep_blank_values=True)
    except ValueError as error:
        raise InvalidParameterError(f"the form cannot be read: {error}") from error


def actor_of(request: Request) -> Actor:
    """Return who acts for a request."""
    client = request.client
    return Actor(parts_of(request), "unknown" if client is None else client.host)


async def show_overview(request: Request) -> Response:
    """Show all queues."""
    parts, asked = parts_of(request), request.query_params
    view = overview(
        parts.survey,
        parts.history,
        find=asked.get("find", ""),
        sort=asked.get("sort", "trouble"),
        page=_number(asked.get("page"), 1),
    )
    return parts.renderer.page(request, "overview", view)


async def show_queue(request: Request) -> Response:
    """Show one queue."""
    parts, asked = parts_of(request), request.query_params
    sent_id = asked.get("sent", "")
    show = partial(
        queue_page,
        parts.backend,
        parts.survey,
        parts.history,
        parts.reader,
        request.path_params["name"],
        find=asked.get("find", ""),
        start=_number(asked.get("start"), 0),
        span=asked.get("span", "hour"),
        sent_id=sent_id if ID.fullmatch(sent_id) else None,
    )
    return parts.renderer.page(request, "queue", await parts.calls.run(show))


async def send_message(request: Request) -> Response:
    """Send what was typed."""
    name, form = request.path_params["name"], await form_of(request)
    id = await actor_of(request).send(name, form.get("body", ""), form.get("delay", ""))
    if wants_json(request):
        return json_response({"id": id}, 201)
    return _back(request, f"/queues/{name}?sent={id}")


async def purge_queue(request: Request) -> Response:
    """Remove all messages of a queue."""
    name = request.path_params["name"]
    removed = await actor_of(request).purge(name)
    return json_response({"removed": removed}) if wants_json(request) else _back(request, "/")


async def find_job(request: Request) -> Response:
    """Ask for the id of a job, or go to its page."""
    parts, id = parts_of(request), request.query_params.get("id", "").strip()
    if id:
        return _back(request, f"/jobs/{check_id(id)}")
    return parts.renderer.page(request, "jobs", {"id": ""})


async def show_job(request: Request) -> Response:
    """Show what has become of a job."""
    parts = parts_of(request)
    id = check_id(request.path_params["id"])
    show = partial(job_page, parts.backend, parts.reader, id)
    return parts.renderer.page(request, "job", await parts.calls.run(show))


def check_id(id: str) -> str:
    """Return the id if it can be one."""
    if not ID.fullmatch(id):
        raise InvalidParameterError(f"{id[:100]!r} is not an id")
    return id


def _back(request: Request, path: str) -> Response:
    return RedirectResponse(parts_of(request).config.prefix + path, status_code=303)


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and re.fullmatch("[0-9]{1,9}", text) else default


ROUTES: list[BaseRoute] = [
    Route("/", show_overview),
    Route("/queues/{name}", show_queue),
    Route("/queues/{name}/send", send_message, methods=["POST"]),
    Route("/queues/{name}/purge", purge_queue, methods=["POST"]),
    Route("/jobs", find_job),
    Route("/jobs/{id}", show_job),
]
