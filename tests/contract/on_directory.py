"""The example of docs/backends.md, a backend on a directory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.directory_backend import DirectoryBackend
from weakincentives.runtime.mailbox.seam.options import QueueOptions


class Directory:
    """A directory of its own for each test."""

    model_examples = 5

    @pytest.fixture(autouse=True)
    def directory(self, bench: None, tmp_path: Path) -> None:
        self._backend = DirectoryBackend(tmp_path)

    def make_mailbox(self, name: str, *, dispatcher: Any = None, **options: Any) -> Any:
        checked = replace(QueueOptions(**options), dispatcher=dispatcher)
        return self._backend._open(name, replace(checked, reply_store=self._backend.reply_store()))
