"""Runs ``wink`` in this process, where coverage and speed are."""

import json
from typing import Any

import pytest

from weakincentives.cli.app import run


class Wink:
    """``wink`` with the URL of one backend."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = run([*arguments, "--url", self.url])
        shown = self._capsys.readouterr()
        return code, shown.out, shown.err

    def ok(self, *arguments: str) -> str:
        code, out, err = self(*arguments)
        assert (code, err) == (0, ""), (code, out, err)
        return out

    def json(self, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in self.ok(*arguments, "--json").splitlines()]
