"""What is kept and shown of an error."""

import json
import tracemalloc

import pytest

from weakincentives.error_text import (
    MAX_STACK,
    MAX_TEXT,
    described,
    error_type,
    one_line,
    own_place_of,
    place_of,
    printable,
    stack_of,
)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_secrets_are_left_out():
    assert described(ValueError("password=hunter2, retrying")) == "password=***, retrying"


def test_texts_are_bounded():
    assert len(described(ValueError("x" * 10**6))) == MAX_TEXT


def test_a_stack_is_bounded_and_ends_where_it_happened():
    def deep(n):
        if n == 0:
            raise ValueError("at the bottom password=hunter2 " + "y" * 100_000)
        deep(n - 1)

    with pytest.raises(ValueError, match="bottom") as caught:
        deep(500)
    stack = stack_of(caught.value)
    assert len(stack) <= MAX_STACK
    assert "at the bottom password=***" in stack.splitlines()[-1]


def test_a_stack_shows_where_it_happened_without_secrets():
    def culprit():
        raise ValueError("token=abcdef")

    with pytest.raises(ValueError, match="token") as caught:
        culprit()
    assert "in culprit" in stack_of(caught.value)
    assert "abcdef" not in stack_of(caught.value)
    place = place_of(caught.value)
    assert place is not None
    assert place.startswith("test_error_text.py:")
    assert place.endswith(" in culprit")
    assert place_of(ValueError()) is None


def test_the_own_place_is_where_the_users_code_called_a_library():
    def decode():
        json.loads("{")

    with pytest.raises(ValueError, match="Expecting") as caught:
        decode()
    assert (place_of(caught.value) or "").startswith("decoder.py:")
    assert (own_place_of(caught.value) or "").endswith(" in decode")
    with pytest.raises(ValueError, match="Expecting") as of_library:
        json.loads("{")
    of_library.value.__traceback__ = of_library.value.__traceback__.tb_next
    assert own_place_of(of_library.value) == place_of(of_library.value), "no code of the user's"
    assert own_place_of(ValueError()) is None


class Mute(Exception):
    def __str__(self):
        raise RuntimeError

    __repr__ = __str__


class Leaver(Exception):
    def __str__(self):
        raise SystemExit(3)


class Sly(str):
    def __getitem__(self, _):
        raise RuntimeError

    def __len__(self):
        return 1


class Cunning(Exception):
    def __str__(self):
        return Sly("quite \x1b[2J long")


class Wrong(Exception):
    def __str__(self):
        return 17  # type: ignore[return-value]


class Holder(Exception):
    """Its argument cannot be shown."""

    def __init__(self):
        super().__init__(Mute())


@pytest.mark.parametrize("kind", [Mute, Leaver, Wrong, Holder])
def test_errors_that_cannot_be_shown_are_no_problem(kind):
    error = raised(kind())
    assert described(error) == "(its text could not be read)"
    assert error_type(error) in stack_of(error)
    assert one_line(error).startswith(kind.__name__)


def test_what_an_error_says_may_be_of_a_class_with_ideas_of_its_own():
    assert described(Cunning()) == "quite \x1b[2J long"
    assert one_line(Cunning()) == "Cunning: quite \\x1b[2J long"


def test_a_type_may_have_any_name():
    hostile = type("E\n\x1b[2J" + "x" * 10_000, (Exception,), {"__module__": 17})
    for shown in (error_type(hostile()), one_line(hostile("t")), stack_of(raised(hostile("t")))):
        assert "\x1b" not in shown
        assert len(shown) < 1_000


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError(), ""),
        (ValueError("a", 1), "('a', 1)"),
        (ValueError(["a", 1]), "['a', 1]"),
        (ValueError(17), "17"),
        (KeyError("a"), "'a'"),
        (OSError(2, "No such file"), "[Errno 2] No such file"),
        (ExceptionGroup("several", [ValueError(), TypeError()]), "several (2 sub-exceptions)"),
    ],
)
def test_what_it_says_is_what_python_says(error, said):
    assert described(error) == said == str(error)


def test_a_text_of_many_lines_is_one_line_of_a_stack_and_of_a_log():
    error = raised(ValueError("one\n2026-11-17 ERROR forged\r\x1b[2J\u202e\x9b1m"))
    for shown in (one_line(error), stack_of(error).splitlines()[-1]):
        assert shown.endswith("one\\n2026-11-17 ERROR forged\\r\\x1b[2J\\u202e\\x9b1m")
        assert shown.isprintable()
    assert all(line.isprintable() for line in stack_of(error).split("\n"))


def test_notes_are_shown_and_bounded():
    error = ValueError("x")
    for number in range(100):
        error.add_note(f"note {number} password=hunter2\nmore " + "z" * 10_000)
    stack = stack_of(error)
    assert "note 0 password=***" in stack
    assert "hunter2" not in stack
    assert len(stack) <= MAX_STACK
    error.__notes__ = 17  # type: ignore[assignment]
    assert "ValueError: x" in stack_of(error)


def test_causes_are_shown_first():
    try:
        try:
            raise KeyError("root")
        except KeyError as root:
            raise ValueError("result") from root
    except ValueError as error:
        stack = stack_of(error)
    assert stack.index("builtins.KeyError: 'root'") < stack.index("which caused:")
    assert stack.endswith("builtins.ValueError: result")


def test_of_a_deep_chain_both_ends_are_shown():
    error = ValueError("number 0")
    for number in range(1, 50_000):
        cause, error = error, ValueError(f"number {number}")
        error.__cause__ = cause
    stack = stack_of(error)
    assert stack.endswith("number 49999")
    assert "errors in between" in stack
    # A chain can be freed only by recursion, which may be too deep.
    while error.__cause__ is not None:
        error.__cause__, error = None, error.__cause__


def test_a_chain_may_be_a_circle():
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert stack_of(one).endswith("one")


def test_of_a_large_group_a_few_are_shown():
    group = ExceptionGroup("many", [raised(ValueError(f"n {n}")) for n in range(10_000)])
    stack = stack_of(raised(group))
    assert "n 0" in stack
    assert "… 9995 more" in stack
    assert len(stack) <= MAX_STACK


def test_a_deep_group_ends_somewhere():
    group: Exception = ValueError("innermost")
    for number in range(500):
        group = ExceptionGroup(f"g {number}", [group])
    assert "… 1 more" in stack_of(group)


def test_what_is_kept_is_always_json():
    json.dumps(described(ValueError("\ud800"))).encode()
    described(ValueError("\ud800")).encode("utf-8")
    stack_of(ValueError("\ud800")).encode("utf-8")


def test_types_have_their_full_name():
    assert error_type(ValueError()) == "builtins.ValueError"


@pytest.mark.parametrize("text", ["tea", "Grüße, 世界", "a\tb\nc", "\x00\x7f\ud800", "\u2028"])
def test_printable_keeps_letters_and_escapes_the_rest(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert (shown == text) == text.isprintable()


@pytest.mark.parametrize(
    "make",
    [
        lambda: ValueError("x" * 10**7),
        lambda: ValueError("x\n" * 10**7, 17),
        lambda: ValueError(b"x" * 10**7),
        lambda: ValueError(["x" * 10**7, b"y" * 10**7]),
        lambda: KeyError("\x00" * 10**7),
        lambda: ExceptionGroup("x" * 10**7, [ValueError("y" * 10**7)] * 1_000),
    ],
)
def test_a_huge_text_costs_no_memory(make):
    error = raised(make())
    tracemalloc.start()
    try:
        for show in (described, one_line, stack_of):
            show(error)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2_000_000
