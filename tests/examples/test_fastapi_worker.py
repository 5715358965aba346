"""The web application with a worker in its lifespan, as a real process."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest

from examples import fastapi_worker
from testkit.ports import HOST, reserved_port
from testkit.waiting import eventually
from tests.examples.model import Model
from weakincentives import connect

ROOT = Path(__file__).parents[2]
SLOW = [{"text": f"slow {n}"} for n in range(500)]


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


@contextmanager
def application(
    model: Model, folder: Path
) -> Iterator[tuple[httpx.Client, "subprocess.Popen[str]"]]:
    with reserved_port() as port:
        arguments = f"examples.fastapi_worker:app --host {HOST} --port {port}".split()
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "uvicorn", *arguments],
            cwd=ROOT,
            env={**os.environ, "QUEUES_URL": url(folder), "MODEL_URL": model.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            with httpx.Client(base_url=f"http://{HOST}:{port}", timeout=60) as client:
                eventually(
                    lambda: client.get("/waiting").status_code == 200,
                    what="the application",
                    ignoring=(httpx.TransportError,),
                )
                yield client, process
        finally:
            process.kill()
            process.communicate()


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/questions.db"


def ended(process: "subprocess.Popen[str]") -> str:
    """Return what it wrote, after it has ended in order."""
    output, _ = process.communicate(timeout=120)
    # uvicorn raises the signal again after it has shut down.
    assert process.returncode in (0, -signal.SIGTERM), output
    assert "Application shutdown complete" in output, output
    assert "Traceback" not in output, output
    return output


def answers(folder: Path) -> list[str]:
    with connect(url(folder)) as backend:
        box = backend.mailbox("answers", body_type=str)
        return [message.body for message in box.receive(max_messages=1000)]


def test_requests_are_served_while_five_hundred_jobs_run(model: Model, tmp_path: Path) -> None:
    with application(model, tmp_path) as (client, process):
        assert client.post("/ask", json={"text": "hello"}).json() == "HELLO"
        assert len(client.post("/questions", json=SLOW).json()) == 500
        eventually(lambda: client.get("/waiting").json()["being_answered"] == 500)
        for n in range(20):
            assert client.post("/ask", json={"text": f"quick {n}"}).json() == f"QUICK {n}"
        assert client.get("/waiting").json() == {"waiting": 0, "being_answered": 500}
        model.release()
        eventually(lambda: client.get("/waiting").json() == {"waiting": 0, "being_answered": 0})
        process.terminate()
        ended(process)
    assert sorted(answers(tmp_path)) == sorted(f"SLOW {n}" for n in range(500))


def test_jobs_at_work_finish_when_the_application_is_shut_down(
    model: Model, tmp_path: Path
) -> None:
    with application(model, tmp_path) as (client, process):
        # It gives them half a minute, of which a busy machine needs a good part for hundreds.
        client.post("/questions", json=SLOW[:100])
        eventually(lambda: client.get("/waiting").json()["being_answered"] == 100)
        process.terminate()
        eventually(lambda: stopped_listening(client))
        model.release()
        ended(process)
    with connect(url(tmp_path)) as backend:
        assert backend.mailbox("questions").stats().total == 0
    assert len(set(answers(tmp_path))) == 100


def stopped_listening(client: httpx.Client) -> bool:
    try:
        socket.create_connection((client.base_url.host, client.base_url.port or 80), 5).close()
    except OSError:
        return True
    return False


def test_the_health_check_fails_when_the_worker_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def unreachable() -> AsyncIterator[None]:
        await broken.wait()
        raise OSError("no such host")
        yield

    broken = asyncio.Event()
    monkeypatch.setattr(fastapi_worker, "QUEUES", url(tmp_path))
    monkeypatch.setattr(fastapi_worker, "clients", unreachable)
    transport = httpx.ASGITransport(fastapi_worker.app)

    async def asked() -> list[int]:
        with pytest.raises(OSError, match="no such host"):
            async with (
                fastapi_worker.lifespan(fastapi_worker.app),
                httpx.AsyncClient(transport=transport, base_url="http://test") as client,
            ):
                before = await client.get("/health")
                broken.set()
                await asyncio.wait([fastapi_worker.app.state.running], timeout=60)
                after = await client.get("/health")
        return [before.status_code, after.status_code]

    assert asyncio.run(asked()) == [200, 503]
