"""A web application that serves its own jobs: the worker runs in its lifespan, on its event loop.

Start it with ``MODEL_URL=… uvicorn examples.fastapi_worker:app``; the model is whatever answers
there. A request gets its answer from ``/ask``, or leaves questions at ``/questions``, which are
answered even if the application is restarted in between.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from fastapi import FastAPI, HTTPException, Request

import weakincentives
from weakincentives.runtime import AsyncJob, Mailbox, Worker, WorkerConfig

QUEUES = os.environ.get("QUEUES_URL", "sqlite:///questions.db")
MODEL = os.environ.get("MODEL_URL", "http://127.0.0.1:9000/")
CONCURRENCY = 1000


@dataclass(frozen=True)
class Question:
    text: str


def clients() -> httpx.AsyncClient:
    """Make the client that all jobs share; the worker closes it when it ends."""
    # With hundreds of idle connections httpx would spend its time on choosing one.
    limits = httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=20)
    return httpx.AsyncClient(timeout=60, limits=limits)


async def answer(question: Question, job: AsyncJob) -> str:
    client: httpx.AsyncClient = job.resources
    response = await client.post(MODEL, json={"prompt": question.text})
    return response.raise_for_status().text


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with weakincentives.connect(QUEUES) as backend:
        questions = backend.mailbox("questions", body_type=Question, reply_type=str)
        app.state.questions = questions
        app.state.answers = backend.mailbox("answers", body_type=str)
        worker = Worker(
            questions,
            answer,
            resources=clients,
            config=WorkerConfig(concurrency=CONCURRENCY),
        )
        running = app.state.running = asyncio.create_task(worker.run_async())
        try:
            yield
        finally:
            await worker.shutdown_async(timeout=30)  # jobs may finish, the rest is given back
            await running  # raises what ended the worker, if anything did


app = FastAPI(lifespan=lifespan)


def questions_of(request: Request) -> Mailbox[Question, str]:
    mailbox: Mailbox[Question, str] = request.app.state.questions
    return mailbox


@app.post("/ask")
async def ask(question: Question, request: Request) -> str:
    """Answer the question."""
    reply = await questions_of(request).send_expecting_reply_async(question, reply_timeout=60)
    return await reply.wait_async()


@app.post("/questions", status_code=202)
async def leave(questions: list[Question], request: Request) -> list[str]:
    """Return the ids of questions that will be answered in the mailbox called answers."""
    answers = request.app.state.answers
    return await questions_of(request).send_batch_async(questions, reply_to=answers)


@app.get("/health")
async def health(request: Request) -> str:
    """Fail if the worker has ended, as it does if its resources cannot be opened.

    The application itself would go on, and nobody would answer its questions.
    """
    if request.app.state.running.done():
        raise HTTPException(503, "the worker has ended")
    return "ok"


@app.get("/waiting")
async def waiting(request: Request) -> dict[str, int]:
    """Tell how many questions are waiting for a worker, and how many are being answered."""
    stats = await questions_of(request).stats_async()
    return {"waiting": stats.pending, "being_answered": stats.in_flight}
