"""The page of one job, by the id of its reply."""

from collections.abc import Callable
from typing import Any

from tests.dashboard.conftest import Asking
from weakincentives.runtime import Worker
from weakincentives.runtime.mailbox.seam.backend import Backend


def run(backend: Backend, handler: Any) -> str:
    box = backend.mailbox("questions")
    reply = box.send_expecting_reply({"q": "why"}, keep=60)
    if handler is not None:
        Worker(box, handler).run(max_iterations=1, wait_time_seconds=0)
    return reply.id


def test_a_job_that_waits(backend: Backend, asking: Callable[..., Asking]) -> None:
    id = run(backend, None)
    page = asking().json(f"/jobs/{id}")
    assert (page["state"], page["deliveries"], page["answer"]) == ("queued", 0, None)


def test_a_job_that_is_done_shows_its_parts_and_its_answer(
    backend: Backend, asking: Callable[..., Asking]
) -> None:
    def handle(body: Any, job: Any) -> Any:
        for number in range(3):
            job.emit({"step": number, "html": "<b>"})
        return {"answer": "<script>"}

    id = run(backend, handle)
    ask = asking()
    page = ask.json(f"/jobs/{id}")
    assert (page["state"], page["deliveries"], page["parts_count"]) == ("done", 1, 3)
    assert [part["index"] for part in page["parts"]] == [0, 1, 2]
    html = ask.html(f"/jobs/{id}")
    assert "<script>\n" not in html
    assert "&lt;script&gt;" in html
    assert "<b>" not in html


def test_a_job_that_failed_says_why(backend: Backend, asking: Callable[..., Asking]) -> None:
    def handle(body: Any) -> Any:
        raise LookupError("no answer")

    page = asking().json(f"/jobs/{run(backend, handle)}")
    assert page["state"] == "failed"
    assert page["error_type"] == "builtins.LookupError"
    assert page["reference"]


def test_an_id_that_is_not_there(asking: Callable[..., Asking]) -> None:
    ask = asking()
    assert ask.client.get("/jobs/nobody").status_code == 404
    assert ask.client.get("/jobs/%3Cscript%3E").status_code == 400


def test_the_search_field_leads_to_the_job(asking: Callable[..., Asking]) -> None:
    answer = asking().client.get("/jobs?id=abc", follow_redirects=False)
    assert answer.headers["location"] == "/jobs/abc"
