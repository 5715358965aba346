"""Samples with known answers, read from JSON Lines."""

import os
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, overload

from typing_extensions import TypeVar

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.runtime.mailbox import InvalidParameterError
from weakincentives.serde import Codec, SerdeError

__all__ = ["Dataset", "DatasetError", "Sample", "write_whole"]

InputT = TypeVar("InputT", default=Any)
ExpectedT = TypeVar("ExpectedT", default=Any)
I = TypeVar("I")  # noqa: E741 - beside E
E = TypeVar("E")

# A sample travels as one message, and larger ones fit into no mailbox.
MAX_LINE = 1024 * 1024

_PLACE = re.compile(r"\s+- at `\$\.?(?P<field>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<field>[^`]*)`")


class DatasetError(InvalidParameterError):
    """The data set cannot be used as it is."""


@FrozenDataclass()
class Sample(Generic[InputT, ExpectedT]):
    """One question with its expected answer."""

    id: str
    input: InputT
    expected: ExpectedT
    tags: tuple[str, ...] = ()
    """What the report breaks the pass rate down by."""

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise ValueError(f"id must be text that is not empty, not {self.id!r:.100}")


@FrozenDataclass()
class Dataset(Generic[InputT, ExpectedT]):
    """Samples in order; no two have the same id."""

    samples: tuple[Sample[InputT, ExpectedT], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", tuple(self.samples))
        seen: set[str] = set()
        for sample in self.samples:
            if sample.id in seen:
                raise DatasetError(f"two samples have the id {sample.id!r:.100}")
            seen.add(sample.id)

    @overload
    @staticmethod
    def load(
        path: str | os.PathLike[str], input_type: type[I], expected_type: type[E]
    ) -> "Dataset[I, E]": ...

    @overload
    @staticmethod
    def load(
        path: str | os.PathLike[str], input_type: Any = Any, expected_type: Any = Any
    ) -> "Dataset[Any, Any]": ...

    @staticmethod
    def load(
        path: str | os.PathLike[str], input_type: Any = Any, expected_type: Any = Any
    ) -> "Dataset[Any, Any]":
        """Read a file with one JSON object a line: ``id``, ``input``, ``expected``, ``tags``.

        An error names the file, the line and the field.
        """
        try:
            codec = Codec(Sample[input_type, expected_type])
        except SerdeError as error:
            raise DatasetError(f"input_type or expected_type: {error}") from error
        samples: list[Sample[Any, Any]] = []
        lines: dict[str, int] = {}
        for number, line in _lines(Path(path)):
            sample = _read(codec, line, f"{path}, line {number}")
            if sample.id in lines:
                raise DatasetError(
                    f"{path}, line {number}, field id: {sample.id!r:.100} is already the id of "
                    f"line {lines[sample.id]}"
                )
            lines[sample.id] = number
            samples.append(sample)
        if not samples:
            raise DatasetError(f"{path} has no samples: write one JSON object a line")
        return Dataset(tuple(samples))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the samples as JSON Lines; whoever reads the file sees all of them or the old."""
        codec = Codec()
        write_whole(Path(path), (codec.encode(sample) + b"\n" for sample in self.samples))

    def sample(self, count: int, *, seed: int = 0) -> "Dataset[InputT, ExpectedT]":
        """Return ``count`` samples chosen at random, the same for the same seed, in order."""
        if not 0 <= count <= len(self.samples):
            raise DatasetError(f"count must be from 0 to {len(self.samples)}, not {count!r}")
        chosen = sorted(random.Random(seed).sample(range(len(self.samples)), count))
        return Dataset(tuple(self.samples[index] for index in chosen))

    def without(self, ids: Iterable[str]) -> "Dataset[InputT, ExpectedT]":
        """Return the samples with other ids than these."""
        left_out = frozenset(ids)
        return Dataset(tuple(sample for sample in self.samples if sample.id not in left_out))

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample[InputT, ExpectedT]]:
        return iter(self.samples)

    @overload
    def __getitem__(self, index: int) -> Sample[InputT, ExpectedT]: ...

    @overload
    def __getitem__(self, index: slice) -> "Dataset[InputT, ExpectedT]": ...

    def __getitem__(
        self, index: int | slice
    ) -> "Sample[InputT, ExpectedT] | Dataset[InputT, ExpectedT]":
        if isinstance(index, slice):
            return Dataset(self.samples[index])
        return self.samples[index]


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file beside its place and move it there when all of it is on the disk."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    try:
        with path.open("rb") as file:
            number = 0
            # Never more than the limit: a file without line ends must not fill the memory.
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE and not line.endswith(b"\n"):
                    raise DatasetError(
                        f"{path}, line {number} is longer than {MAX_LINE:,} bytes, the most that "
                        f"a sample may have; put large inputs elsewhere and refer to them"
                    )
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if line.strip():
                    yield number, line
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror or error}") from error


def _read(codec: Codec, line: bytes, place: str) -> Any:
    try:
        return codec.decode(line, None)
    except SerdeError as error:
        text = str(error.__cause__ or error)
    where = _PLACE.search(text)
    missing = _MISSING.search(text)
    if missing and not (where and where["field"]):
        raise DatasetError(f"{place}, field {missing['field']} is missing")
    if where:
        field = f", field {where['field']}" if where["field"] else ""
        raise DatasetError(f"{place}{field}: {text[: where.start()]}")
    raise DatasetError(f"{place}: {text}")
