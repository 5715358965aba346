"""A million messages through one in-memory mailbox and eight threads: nothing lost or doubled."""

import argparse
import sys
import threading
import time

from weakincentives.runtime.mailbox import InMemoryMailbox

SENDERS = CONSUMERS = 4


def run(messages: int) -> list[int]:  # noqa: C901 - two little loops inside
    """Send and consume with eight threads; return every body as often as it was delivered."""
    mailbox: InMemoryMailbox[int] = InMemoryMailbox("stress")
    share = messages // SENDERS
    received: list[list[int]] = [[] for _ in range(CONSUMERS)]

    def send(sender: int) -> None:
        for number in range(sender * share, (sender + 1) * share):
            mailbox.send(number)

    def consume(mine: list[int]) -> None:
        while True:
            batch = mailbox.receive(max_messages=10, visibility_timeout=3600, wait_time_seconds=600)
            for message in batch:
                mine.append(message.body)
                message.acknowledge()
            if mailbox.closed:
                return

    senders = [threading.Thread(target=send, args=(number,)) for number in range(SENDERS)]
    consumers = [threading.Thread(target=consume, args=(mine,)) for mine in received]
    for thread in (*senders, *consumers):
        thread.start()
    for thread in senders:
        thread.join()
    while mailbox.approximate_count():
        time.sleep(0.01)
    mailbox.close()
    for thread in consumers:
        thread.join()
    return [number for mine in received for number in mine]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    messages = parser.parse_args().messages // SENDERS * SENDERS
    started = time.perf_counter()
    seen = run(messages)
    seconds = time.perf_counter() - started
    lost = messages - len(set(seen))
    doubled = len(seen) - len(set(seen))
    print(
        f"{messages:,} messages, {SENDERS + CONSUMERS} threads, {seconds:.1f} s "
        f"({messages / seconds:,.0f}/s): {lost} lost, {doubled} delivered twice"
    )
    return 1 if lost or doubled else 0


if __name__ == "__main__":
    sys.exit(main())
