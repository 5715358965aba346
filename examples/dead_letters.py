"""A poison job goes to the dead letters after three attempts, and is replayed once repaired."""

import weakincentives
from weakincentives.runtime import Backoff, DLQPolicy, Worker, WorkerConfig, replay_dead_letters

broken = True


def handle(order: str) -> None:
    if broken:
        raise ValueError(f"cannot ship {order}")
    print("shipped", order)


def main() -> None:
    global broken
    with weakincentives.connect("sqlite:///orders.db") as backend:
        orders = backend.mailbox("orders", body_type=str)
        dead = backend.mailbox("orders-dlq")
        worker = Worker(
            orders,
            handle,
            dlq=DLQPolicy(mailbox=dead, max_delivery_count=3),
            config=WorkerConfig(backoff=Backoff(base=0.01, cap=0.1)),
        )
        orders.send("tea")
        while not dead.approximate_count():
            worker.run(max_iterations=1, wait_time_seconds=1)
        print("given up:", dead.peek()[0].body.last_error_type)

        broken = False
        print("replayed", replay_dead_letters(dead, orders))
        worker.run(max_iterations=1, wait_time_seconds=1)


if __name__ == "__main__":
    main()
