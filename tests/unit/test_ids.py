import random
import string

from weakincentives.ids import derived_id, new_id, new_ids

ALPHABET = set(string.ascii_letters + string.digits + "-_")


def test_ids_are_twenty_url_safe_characters() -> None:
    for id in (new_id(), *new_ids(3), derived_id("orders", "42")):
        assert len(id) == 20
        assert set(id) <= ALPHABET


def test_new_ids_differ() -> None:
    assert len({new_id() for _ in range(10_000)}) == 10_000
    assert len(set(new_ids(10_000))) == 10_000


def test_new_ids_do_not_follow_a_seed() -> None:
    random.seed(1)
    first = new_id()
    random.seed(1)
    assert new_id() != first


def test_a_derived_id_is_always_the_same() -> None:
    assert derived_id("orders", "42", "1") == derived_id("orders", "42", "1")


def test_where_one_part_ends_matters() -> None:
    ids = {derived_id("ab", "c"), derived_id("a", "bc"), derived_id("abc"), derived_id("abc", "")}
    assert len(ids) == 4


def test_a_derived_id_takes_any_text() -> None:
    assert derived_id("\ud800", "ü") != derived_id("\ud801", "ü")
