"""Data sets: reading, writing, choosing, and what is said of a bad file."""

import json
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from weakincentives.evals import Dataset, DatasetError, Sample
from weakincentives.evals.dataset import MAX_LINE

GOOD = '{"id": "a", "input": "q", "expected": "x"}'


@dataclass(frozen=True)
class Question:
    text: str
    choices: tuple[str, ...]


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_typed_samples_make_the_round_trip(tmp_path: Path) -> None:
    samples = (
        Sample("a", Question("?", ("x", "y")), 1, ("hard", "long")),
        Sample("ü", Question("!", ()), 2),
    )
    path = tmp_path / "data.jsonl"
    Dataset(samples).save(path)
    assert Dataset.load(path, Question, int).samples == samples
    assert Dataset.load(path)[0].input == {"text": "?", "choices": ["x", "y"]}
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.jsonl"]


def test_blank_lines_and_a_byte_order_mark_are_no_samples(tmp_path: Path) -> None:
    path = written(tmp_path, b"\xef\xbb\xbf" + GOOD.encode() + b"\r\n\n  \n")
    assert [sample.id for sample in Dataset.load(path, str, str)] == ["a"]


BAD: dict[str, tuple[str | bytes, str]] = {
    "bad JSON": (GOOD + "\n{oops", "line 2: JSON is malformed"),
    "cut off": (GOOD[:-5], "line 1: Input data was truncated"),
    "missing key": (GOOD + '\n{"id": "b", "input": "q"}', "line 2, field expected is missing"),
    "duplicate id": (f"{GOOD}\n\n{GOOD}", "line 3, field id: 'a' is already the id of line 1"),
    "wrong type": (GOOD.replace('"x"', "7"), "line 1, field expected: Expected `str`, got `int`"),
    "deep wrong type": (
        '{"id": "a", "input": "q", "expected": "x", "tags": ["t", 1]}',
        "line 1, field tags[1]: Expected `str`, got `int`",
    ),
    "id of a number": (GOOD.replace('"a"', "1"), "line 1, field id: Expected `str`, got `int`"),
    "empty id": (GOOD.replace('"a"', '""'), "line 1: id must be non-empty text"),
    "no object": ("[1]", "line 1: Expected `object`, got `array`"),
    "empty file": ("", "has no samples"),
    "only blank lines": ("\n\n", "has no samples"),
    "not UTF-8": (GOOD.encode().replace(b'"q"', b'"\xff"'), "line 1"),
    "too deep": ('{"id": "a", "input": ' + "[" * 500, "line 1: nested deeper than 201 levels"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_told_in_one_line_with_its_place(name: str, tmp_path: Path) -> None:
    content, said = BAD[name]
    path = written(tmp_path, content)
    with pytest.raises(DatasetError) as caught:
        Dataset.load(path, str, str)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD + '\n{"id": "')
    with path.open("r+b") as file:
        file.truncate(100 * 1024 * 1024)
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError, match=r"line 2 is longer than 1,048,576 bytes"):
            Dataset.load(path)
        assert tracemalloc.get_traced_memory()[1] < 8 * MAX_LINE
    finally:
        tracemalloc.stop()


def test_the_longest_line_is_read(tmp_path: Path) -> None:
    line = GOOD.replace('"q"', json.dumps("q" * (MAX_LINE - len(GOOD))))
    assert len(line) <= MAX_LINE
    assert len(Dataset.load(written(tmp_path, line + "\n"))) == 1


@pytest.mark.parametrize("place", [".", "nowhere.jsonl"])
def test_what_is_no_file_is_told(place: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="cannot be read"):
        Dataset.load(tmp_path / place)


def test_a_type_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="input_type or expected_type"):
        Dataset.load(written(tmp_path, GOOD), Question | Sample[Any, Any], str)


def test_slices_and_chosen_samples_are_data_sets() -> None:
    data = Dataset(tuple(Sample(str(n), n, n) for n in range(20)))
    assert [sample.id for sample in data[5:8]] == ["5", "6", "7"]
    assert data[-1].id == "19"
    chosen = data.sample(5, seed=3)
    assert chosen == data.sample(5, seed=3)
    assert chosen != data.sample(5, seed=4)
    assert [sample.input for sample in chosen] == sorted(sample.input for sample in chosen)
    assert [sample.id for sample in data.without(str(n) for n in range(18))] == ["18", "19"]
    with pytest.raises(DatasetError, match="count must be from 0 to 20"):
        data.sample(21)


def test_ids_are_unique() -> None:
    with pytest.raises(DatasetError, match="two samples have the id 'a'"):
        Dataset((Sample("a", 1, 1), Sample("a", 2, 2)))
