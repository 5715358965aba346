"""The log of ``wink``: on standard error, as lines for people or as JSON."""

import json
import logging
import os
import sys
from datetime import UTC, datetime
from enum import StrEnum

from weakincentives.error_text import printable

__all__ = [
    "JSON_VARIABLE",
    "LEVEL_VARIABLE",
    "LogLevel",
    "configure_logging",
    "configure_logging_of_worker",
    "log_environment",
]

LEVEL_VARIABLE, JSON_VARIABLE = "WINK_LOG_LEVEL", "WINK_LOG_JSON"


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# Their debug output is long and shows the bodies of messages.
LIBRARIES = ("boto3", "botocore", "urllib3", "redis", "asyncio")


def configure_logging(level: LogLevel, as_json: bool) -> None:
    """Send the log of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))


def log_environment(level: LogLevel, as_json: bool) -> dict[str, str]:
    """Return the environment variables that make a child process log in the same way."""
    return {LEVEL_VARIABLE: level.value, JSON_VARIABLE: "1" if as_json else "0"}


def configure_logging_of_worker() -> None:
    """Log in the same way as the process that started this one."""
    level = LogLevel(os.environ.get(LEVEL_VARIABLE, LogLevel.WARNING))
    configure_logging(level, os.environ.get(JSON_VARIABLE) == "1")


class PlainLines(logging.Formatter):
    """Lines for people: time, level, logger and message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without control characters."""
        return "\n".join(map(printable, super().format(record).replace("\t", "    ").split("\n")))


class JsonLines(logging.Formatter):
    """One JSON object per line, with the fields of the record beside its message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, in plain ASCII."""
        shown: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            "thread": record.threadName,
        }
        fields = {name: value for name, value in vars(record).items() if name not in ORDINARY}
        shown |= {name: value for name, value in fields.items() if name not in shown}
        traceback = record.exc_text or (record.exc_info and self.formatException(record.exc_info))
        if traceback:
            shown["traceback"] = traceback
        return json.dumps(shown, ensure_ascii=True, default=str)


# The attributes of every record; all others came from `extra`.
ORDINARY = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
