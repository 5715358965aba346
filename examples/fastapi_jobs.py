"""A web API for long jobs: start one, ask how it goes, watch it, cancel it, or wait for its answer.

The web server and the workers are processes of their own, and any of them may be restarted at any
time::

    uvicorn examples.fastapi_jobs:app
    wink worker examples.fastapi_jobs:worker --url sqlite:///research.db
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse

import weakincentives
from weakincentives.runtime import (
    AsyncJob,
    InvalidParameterError,
    JobState,
    ReplyCancelledError,
    ReplyFailedError,
    ReplyNotFoundError,
    ReplyTimeoutError,
    Worker,
    WorkerConfig,
)

QUEUES = os.environ.get("QUEUES_URL", "sqlite:///research.db")
ONE_DAY = 86_400.0


@dataclass(frozen=True)
class Research:
    topic: str
    chapters: int = 3


async def write(research: Research, job: AsyncJob) -> str:
    """Write a report, and tell the caller of each chapter that is done."""
    for number in range(research.chapters):
        await asyncio.sleep(0.01)  # here you would ask a model
        await job.emit({"chapter": number, "title": f"{research.topic}, part {number + 1}"})
    return f"{research.chapters} chapters on {research.topic}"


def worker(backend: weakincentives.Backend) -> Worker[Research, str]:
    """Make the worker that `wink worker` runs."""
    box = backend.mailbox("research", body_type=Research, reply_type=str)
    return Worker(box, write, config=WorkerConfig(concurrency=500))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with weakincentives.connect(QUEUES) as backend:
        app.state.backend = backend
        app.state.research = backend.mailbox("research", body_type=Research, reply_type=str)
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/jobs", status_code=202)
async def start(research: Research, request: Request) -> dict[str, str]:
    """Start a job; its answer can be read for a day after it has ended."""
    reply = await request.app.state.research.send_expecting_reply_async(
        research, reply_timeout=ONE_DAY, keep=ONE_DAY
    )
    return {"id": reply.id}


@app.exception_handler(ReplyNotFoundError)
@app.exception_handler(InvalidParameterError)
async def not_found(request: Request, error: Exception) -> JSONResponse:
    """Answer requests for jobs that are not there, or cannot be."""
    return JSONResponse({"detail": str(error)}, 404)


@app.get("/jobs/{id}")
async def status(id: str, request: Request) -> dict[str, Any]:
    """Tell what has become of a job, and its answer or its error if there is one."""
    reply = request.app.state.backend.reply(id, reply_type=str)
    found = await reply.status_async()
    if found.state not in (JobState.DONE, JobState.FAILED):
        return asdict(found)
    try:
        return {**asdict(found), "answer": await reply.wait_async()}
    except ReplyFailedError as error:
        return {**asdict(found), "error": str(error)}


@app.get("/jobs/{id}/events")
async def events(
    id: str, request: Request, last_event_id: Annotated[int, Header()] = -1
) -> StreamingResponse:
    """Stream what a job emits, from where the last connection ended."""
    reply = request.app.state.backend.reply(id)
    await reply.status_async()  # a job that is not there is no stream

    async def stream() -> AsyncIterator[str]:
        delivery = 1
        async for part in reply.parts_async(start=max(last_event_id + 1, 0)):
            if part.delivery > delivery:
                delivery = part.delivery
                yield f"event: again\ndata: {delivery}\n\n"  # its worker died, or it failed
            yield f"id: {part.index}\ndata: {part.value['title']}\n\n"
        yield f"event: end\ndata: {(await reply.status_async()).state}\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


@app.delete("/jobs/{id}")
async def cancel(id: str, request: Request) -> dict[str, bool]:
    """Cancel a job; false if it was answered first."""
    return {"cancelled": await request.app.state.backend.reply(id).cancel_async()}


@app.post("/ask")
async def ask(research: Research, request: Request, timeout: float = 10) -> str:
    """Wait for the answer, but not for long."""
    box = request.app.state.research
    reply = await box.send_expecting_reply_async(research, reply_timeout=timeout)
    try:
        answer: str = await reply.wait_async()
    except ReplyTimeoutError as error:
        raise HTTPException(504, "no worker has answered in time") from error
    except (ReplyFailedError, ReplyCancelledError) as error:
        raise HTTPException(502, str(error)) from error
    return answer
