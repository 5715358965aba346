"""The Redis programs in the specification's own documents, run as they stand."""

import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis.cluster

import redis
from tests.servers import Cluster, Standalone
from weakincentives.contrib.mailbox import RedisMailbox
from weakincentives.runtime.mailbox import InMemoryMailbox

FOLDER = Path(__file__).parents[3] / "shared" / "seeds"

ELSEWHERE = {
    "MainLoop": "runs a loop: tested with the loops",
    "weakincentives.evals": "runs evaluations: tested with them",
    "FakeMailbox": "a test double: tested with the doubles",
}


@dataclass
class Request:
    """What one of the documents sends."""

    priority: str


def programs() -> list[Any]:
    found = []
    for document in sorted(FOLDER.glob("*.txt")):
        text = document.read_text()
        for block in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
            if "RedisMailbox(" not in block[1]:
                continue
            line = text[: block.start()].count("\n") + 1
            marks = [
                pytest.mark.skip(reason=reason)
                for word, reason in ELSEWHERE.items()
                if word in block[1]
            ]
            found.append(pytest.param(block[1], id=f"{document.name[:3]}-{line}", marks=marks))
    return found or [
        pytest.param("", marks=pytest.mark.skip(reason="the specification is not here"))
    ]


@pytest.mark.parametrize("program", programs())
def test_program(
    program: str,
    server: Standalone,
    request: pytest.FixtureRequest,
    binary: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Connected(redis.Redis):
        """Wherever the document says that the server is, it is here."""

        def __init__(self, host: str = "", port: int = 0, db: int = 0) -> None:
            super().__init__(host="127.0.0.1", port=server.port, db=db)

    if "RedisCluster" in program:
        cluster: Cluster = request.getfixturevalue("shared_cluster")
        monkeypatch.setattr(redis.cluster, "RedisCluster", lambda **_: cluster.client())
    monkeypatch.setattr(redis, "Redis", Connected)
    client = Connected()
    requests: Any = RedisMailbox("requests", client)
    responses: Any = RedisMailbox("responses", client)
    # The names that the documents take for granted.
    names: dict[str, Any] = {
        "Redis": Connected,
        "RedisMailbox": RedisMailbox,
        "InMemoryMailbox": InMemoryMailbox,
        "redis": client,
        "redis_client": client,
        "redis_requests": requests,
        "requests": InMemoryMailbox("requests") if "InMemoryMailbox" in program else requests,
        "responses": responses,
        "request": Request("high"),
        "request1": 1,
        "request2": 2,
        "client": SimpleNamespace(region="us-east"),
        "client1": requests,
        "client2": requests,
        "incoming_requests": range(20),
        "process": str.upper,
        "uuid4": uuid.uuid4,
    }
    requests.send("work", reply_to=responses)
    exec(compile(program, "specification", "exec"), names)  # what it is about
    for name, value in list(names.items()):
        if name.startswith("test_"):
            value(Connected(db=15))
            Connected(db=15).flushdb()
