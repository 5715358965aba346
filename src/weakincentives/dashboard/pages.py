"""The addresses of the dashboard: each takes a request apart and shows a view."""

import re
from dataclasses import replace
from functools import partial
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from weakincentives.runtime.mailbox import InvalidParameterError

from .actions import Actor
from .job_page import job_page
from .letter_actions import WrongShapeError, begin_pass, send_edited
from .letters import LetterPage, letter_page, letter_queues, letters_page
from .overview import overview
from .parts import parts_of
from .passes import RunningPass
from .queue_page import queue_page
from .rendering import json_response, wants_json
from .workers_page import workers_page

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


async def pause_queue(request: Request) -> Response:
    """Stop all consumers of a queue."""
    name, form = request.path_params["name"], await form_of(request)
    await actor_of(request).pause(name, form.get("because", "").strip())
    if wants_json(request):
        return json_response({"paused": True})
    return _back(request, f"/queues/{name}")


async def resume_queue(request: Request) -> Response:
    """Let the consumers of a queue go on."""
    name = request.path_params["name"]
    resumed = await actor_of(request).resume(name)
    if wants_json(request):
        return json_response({"resumed": resumed})
    return _back(request, f"/queues/{name}")


async def show_workers(request: Request) -> Response:
    """Show who serves the queues."""
    parts, asked = parts_of(request), request.query_params
    view = workers_page(
        parts.survey.workers, find=asked.get("find", ""), page=_number(asked.get("page"), 1)
    )
    return parts.renderer.page(request, "workers", view)


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


async def show_letter_queues(request: Request) -> Response:
    """Show which queues hold dead letters."""
    parts = parts_of(request)
    return parts.renderer.page(request, "letter_queues", {"queues": letter_queues(parts.survey)})


async def show_letters(request: Request) -> Response:
    """Show the dead letters of one queue, grouped."""
    parts, asked = parts_of(request), request.query_params
    name, find = request.path_params["name"], asked.get("find", "")
    show = partial(letters_page, parts.backend, parts.scans, parts.reader, name, find)
    return parts.renderer.page(request, "letters", await parts.calls.run(show))


async def show_letter(request: Request) -> Response:
    """Show one dead letter."""
    return parts_of(request).renderer.page(request, "letter", await _letter(request))


async def _letter(request: Request) -> LetterPage:
    parts = parts_of(request)
    name, id = request.path_params["name"], check_id(request.path_params["id"])
    place = _number(request.query_params.get("place"), 0)
    trace_url = parts.config.trace_url
    return await parts.calls.run(
        partial(letter_page, parts.backend, parts.reader, name, id, place, trace_url)
    )


async def act_on_letters(request: Request) -> Response:
    """Count, replay or discard those that were ticked, or all that match."""
    name, fields = request.path_params["name"], await fields_of(request)
    form, ids = dict(fields), [value for field, value in fields if field == "id"]
    action, _, scope = form.get("do", "").partition("-")
    if scope == "ticked" and not ids:
        raise InvalidParameterError("no dead letter was ticked")
    begun = await begin_pass(
        actor_of(request),
        action,
        name,
        find="" if scope == "ticked" else form.get("find", ""),
        ids=[check_id(id) for id in ids] if scope == "ticked" else (),
        most=len(set(ids)) if scope == "ticked" else _number(form.get("most"), 0) or None,
        until=_time(form.get("until")),
    )
    if wants_json(request):
        return json_response(begun, 202)
    return _back(request, f"/passes/{begun.id}")


async def edit_letter(request: Request) -> Response:
    """Send the message of one letter again with another body."""
    name, id = request.path_params["name"], check_id(request.path_params["id"])
    form = await form_of(request)
    text = form.get("body", "")
    try:
        await send_edited(actor_of(request), name, id, text, force=form.get("force") == "yes")
    except WrongShapeError as error:
        view = replace(await _letter(request), wrong=error.found, edited=text)
        return parts_of(request).renderer.page(request, "letter", view, 409)
    return json_response({"sent": 1}) if wants_json(request) else _back(request, f"/letters/{name}")


async def show_pass(request: Request) -> Response:
    """Show how far a pass over dead letters is."""
    return parts_of(request).renderer.page(request, "pass", _pass(request).view())


async def stop_pass(request: Request) -> Response:
    """Stop a pass over dead letters."""
    found = _pass(request)
    found.stop()
    if wants_json(request):
        return json_response(found.view())
    return _back(request, f"/passes/{request.path_params['id']}")


def _pass(request: Request) -> RunningPass:
    found = parts_of(request).passes.get(request.path_params["id"])
    if found is None:
        raise HTTPException(404, "this pass is not known, or was long ago")
    return found


def _time(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError as error:
        raise InvalidParameterError(f"until is not a time: {str(text)[:50]!r}") from error


ROUTES: list[BaseRoute] = [
    Route("/letters", show_letter_queues),
    Route("/letters/{name}", show_letters),
    Route("/letters/{name}", act_on_letters, methods=["POST"]),
    Route("/letters/{name}/{id}", show_letter),
    Route("/letters/{name}/{id}/edit", edit_letter, methods=["POST"]),
    Route("/passes/{id}", show_pass),
    Route("/passes/{id}/stop", stop_pass, methods=["POST"]),
    Route("/", show_overview),
    Route("/queues/{name}", show_queue),
    Route("/queues/{name}/send", send_message, methods=["POST"]),
    Route("/queues/{name}/purge", purge_queue, methods=["POST"]),
    Route("/queues/{name}/pause", pause_queue, methods=["POST"]),
    Route("/queues/{name}/resume", resume_queue, methods=["POST"]),
    Route("/workers", show_workers),
    Route("/jobs", find_job),
    Route("/jobs/{id}", show_job),
]
