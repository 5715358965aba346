"""Log lines that cannot be forged."""

import io
import logging
from pathlib import Path

import pytest

import weakincentives
from weakincentives.logs import get_logger

logger = get_logger("weakincentives.test")


@pytest.fixture
def written():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(filename)s %(funcName)s %(message)s"))
    logger.logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield stream
    logger.logger.removeHandler(handler)


def test_it_names_the_place_that_logs(written):
    logger.info("hello %d", 1)
    try:
        raise ValueError
    except ValueError:
        logger.exception("again")
    first, again, *_ = written.getvalue().splitlines()
    here = "test_logs.py test_it_names_the_place_that_logs"
    assert first == f"INFO {here} hello 1"
    assert again == f"ERROR {here} again"


def test_arguments_cannot_forge_a_line_or_drive_a_terminal(written):
    logger.warning("message %s of %s", "id\nERROR forged\x1b[2J", "q" * 10**6)
    logger.warning("failed: %s", ValueError("password=hunter2\nERROR forged" + "x" * 10**6))
    text = written.getvalue()
    assert text.count("\n") == 2
    assert "\x1b" not in text
    assert "hunter2" not in text
    assert len(text) < 10_000


@pytest.mark.parametrize("given", ["error", "tuple", "current"])
def test_a_traceback_is_bounded_and_redacted(written, given):
    try:
        raise ValueError("password=hunter2\nERROR forged" + "x" * 10**6)
    except ValueError as error:
        exc_info = {"error": error, "tuple": (ValueError, error, None), "current": True}[given]
        logger.error("it failed", exc_info=exc_info)
    text = written.getvalue()
    assert "Traceback" in text
    assert "ValueError: password=***" in text
    assert "hunter2" not in text
    assert not any(line.startswith("ERROR forged") for line in text.splitlines())
    assert len(text) < 10_000


def test_what_cannot_be_shown_does_not_end_the_caller(written):
    class Mute:
        def __str__(self):
            raise RuntimeError

    logger.warning("%s", Mute())
    assert "Mute that cannot be shown" in written.getvalue()


def test_fields_are_safe_too(caplog):
    with caplog.at_level(logging.INFO):
        logger.info("hello", extra={"message_id": "a\nb", "count": 3, "error": ValueError("x\ny")})
    (record,) = caplog.records
    assert (record.message_id, record.count) == ("a\\nb", 3)
    assert record.error == "ValueError: x\\ny"


def test_what_is_not_logged_costs_no_text():
    class Expensive:
        def __str__(self):
            raise AssertionError

    logger.setLevel(logging.ERROR)
    logger.info("%s", Expensive())


def test_every_module_logs_safely():
    """A logger of its own would show what anybody says, in full."""
    package = Path(weakincentives.__file__).parent
    unsafe = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "getLogger(" in path.read_text(encoding="utf-8")
    ]
    # The watchdog reports the stacks of all threads, in as many lines as they take.
    assert sorted(unsafe) == ["cli/log_output.py", "logs.py", "runtime/group/watchdog.py"]
