"""What is kept of an error."""

import json

import pytest

from weakincentives.runtime.evidence import MAX_STACK, MAX_TEXT, described, error_type, stack_of


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("redis://user:hunter2@host:6379/0 is down", "redis://***@host:6379/0 is down"),
        ("password=hunter2, retrying", "password=***, retrying"),
        ("api_key: 'sk-123456'", "api_key: ***"),
        ('{"client_secret": "abc def"}', '{"client_secret": ***}'),
        ("Authorization: Bearer abc.def.ghi", "Authorization: Bearer ***"),
        ("got bearer abcdefghijk", "got bearer ***"),
        ("OPENAI_API_KEY=sk-9 is invalid", "OPENAI_API_KEY=*** is invalid"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_secrets_are_left_out(text, kept):
    assert described(ValueError(text)) == kept


def test_texts_are_bounded():
    assert len(described(ValueError("x" * 10**6))) == MAX_TEXT


def test_the_end_of_a_long_stack_is_kept():
    def deep(n):
        if n == 0:
            raise ValueError("at the bottom password=hunter2 " + "y" * 100_000 + " the end")
        deep(n - 1)

    with pytest.raises(ValueError, match="bottom") as caught:
        deep(50)
    stack = stack_of(caught.value)
    assert len(stack) == MAX_STACK
    assert stack.rstrip().endswith("the end")


def test_a_stack_shows_where_it_happened_without_secrets():
    def culprit():
        raise ValueError("token=abcdef")

    with pytest.raises(ValueError, match="token") as caught:
        culprit()
    stack = stack_of(caught.value)
    assert "in culprit" in stack
    assert "abcdef" not in stack.splitlines()[-1]


def test_errors_that_cannot_be_shown_are_no_problem():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert "could not be read" in described(Mute())
    assert stack_of(Mute())


def test_what_is_kept_is_always_json():
    json.dumps(described(ValueError("\ud800"))).encode()
    described(ValueError("\ud800")).encode("utf-8")


def test_types_have_their_full_name():
    assert error_type(ValueError()) == "builtins.ValueError"
