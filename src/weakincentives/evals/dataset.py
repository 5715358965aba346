"""A data set: samples with expected answers, read from a JSON Lines file."""

import os
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, overload

from typing_extensions import TypeVar

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.runtime.mailbox import InvalidParameterError
from weakincentives.serde import Codec, SerdeError

__all__ = ["Dataset", "DatasetError", "Sample", "write_whole"]

InputT = TypeVar("InputT", default=Any)
ExpectedT = TypeVar("ExpectedT", default=Any)
I = TypeVar("I")  # noqa: E741 - beside E
E = TypeVar("E")

# A sample is sent as one message, and no mailbox accepts a larger one.
MAX_LINE = 1024 * 1024

_PLACE = re.compile(r"\s+- at `\$\.?(?P<field>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<field>[^`]*)`")


class DatasetError(InvalidParameterError):
    """The data set is invalid or cannot be read."""


@FrozenDataclass()
class Sample(Generic[InputT, ExpectedT]):
    """One question with its expected answer."""

    id: str
    input: InputT
    expected: ExpectedT
    tags: tuple[str, ...] = ()
    """Labels; the report shows the pass rate for each."""

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise ValueError(f"id must be non-empty text, not {self.id!r:.100}")


@FrozenDataclass()
class Dataset(Generic[InputT, ExpectedT]):
    """An ordered list of samples with unique ids."""

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
        """Read a file with one JSON object per line: ``id``, ``input``, ``expected``, ``tags``.

        Errors name the file, the line and the field.
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
            raise DatasetError(f"{path} has no samples: write one JSON object per line")
        return Dataset(tuple(samples))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the samples as JSON Lines; a reader sees the old file or all of the new one."""
        codec = Codec()
        write_whole(Path(path), (codec.encode(sample) + b"\n" for sample in self.samples))

    def sample(self, count: int, *, seed: int = 0) -> "Dataset[InputT, ExpectedT]":
        """Return ``count`` random samples in their order; the same seed gives the same samples."""
        if not 0 <= count <= len(self.samples):
            raise DatasetError(f"count must be from 0 to {len(self.samples)}, not {count!r}")
        chosen = sorted(random.Random(seed).sample(range(len(self.samples)), count))
        return Dataset(tuple(self.samples[index] for index in chosen))

    def without(self, ids: Iterable[str]) -> "Dataset[InputT, ExpectedT]":
        """Return the data set without the samples of these ids."""
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
    """Write a file atomically: write a temporary file to disk, then rename it to ``path``."""
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
    """Yield the number and the content of each line that is not blank."""
    try:
        with path.open("rb") as file:
            yield from _lines_of(file, path)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror or error}") from error


def _lines_of(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    # Read at most the limit, so that a file without line ends cannot fill the memory.
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE and not line.endswith(b"\n"):
            raise DatasetError(
                f"{path}, line {number} is longer than {MAX_LINE:,} bytes, the limit for "
                f"a sample; store large inputs elsewhere and refer to them"
            )
        line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if line.strip():
            yield number, line


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
