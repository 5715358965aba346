"""MainLoops that die or freeze while callers wait for their results."""

from functools import partial

from chaos import roles
from chaos.crews import LEASE, Callers, die_at, frozen_in_turn, judged, killed_in_turn
from chaos.stage import Stage, scenario
from testkit.waiting import eventually
from weakincentives.runtime import MainLoopRequest


@scenario("sqlite", "redis", full=50, short=3)
def main_loop_kill(stage: Stage):
    """kill -9 of a MainLoop in the middle of a request: each caller has exactly one result"""
    callers = _callers(stage)
    killed_in_turn(stage, partial(stage.child, roles.main_loop, LEASE), callers)
    callers.check()
    return judged(stage, "kill")


@scenario("sqlite", "redis", full=20, short=2)
def main_loop_freeze(stage: Stage):
    """SIGSTOP of a MainLoop beyond its lease, then SIGCONT: each caller has exactly one result"""
    callers = _callers(stage)
    frozen_in_turn(stage, partial(stage.child, roles.main_loop, LEASE), callers)
    callers.check()
    return judged(stage, "stop")


@scenario("sqlite", "redis", full=60, short=4)
def kill_between_result_and_ack(stage: Stage):
    """kill -9 of a MainLoop between result and ack, and just after the ack"""
    callers = _callers(stage)
    callers.send_batch([{} for _ in range(stage.trials)])  # each dies on one
    die_at(stage, stage.trials, lambda when: stage.child(roles.main_loop, 0.3, when))
    survivor = stage.child(roles.main_loop, LEASE)
    eventually(lambda: callers.stats().total == 0, 120, "an empty queue")
    survivor.kill()
    callers.check()
    return stage.verdict()


def _callers(stage: Stage) -> Callers:
    box = stage.mailbox(body_type=roles.Request, reply_type=roles.Outcome)
    results = stage.connection.mailbox("results", body_type=roles.Outcome)
    return Callers(
        stage,
        box,
        results,
        asked=lambda body: MainLoopRequest(request=body),
        told=lambda result: result.output,
    )
