"""A worker that streams its progress to the caller's own mailbox while it works."""

from dataclasses import dataclass

import weakincentives


@dataclass(frozen=True)
class Progress:
    step: int
    of: int


@dataclass(frozen=True)
class Report:
    title: str


def work(backend: weakincentives.Backend) -> None:
    """Serve one request: several replies, then the acknowledgement."""
    for message in backend.mailbox("reports", body_type=str).receive(wait_time_seconds=5):
        for step in (1, 2, 3):
            message.reply(Progress(step, of=3))
            message.extend_visibility(30)
        message.reply(Report(f"All about {message.body}"))
        message.acknowledge()


def main() -> None:
    with weakincentives.connect("sqlite:///reports.db") as backend:
        mine = backend.mailbox("reports-for-me", body_type=Progress | Report)
        backend.mailbox("reports").send("tea", reply_to=mine)
        work(backend)
        for message in mine.receive(max_messages=10):
            print(message.body)
            message.acknowledge()


if __name__ == "__main__":
    main()
