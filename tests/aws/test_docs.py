"""The programs of docs/aws.md run."""

import re

import pytest

from .cloud import CREDENTIALS, DOCUMENT, Cloud

PROGRAMS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.split("\n")[0])
def test_programs(program: str, ministack: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name.upper(), value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.endpoint)
    ministack.queue("shop-orders")
    exec(compile(program, str(DOCUMENT), "exec"), {})
