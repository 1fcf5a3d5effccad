"""Which failures end a run and which are forgiven."""

import pytest

from engram.actors.member_pool import FIRST_PAUSE, FORGIVEN_AFTER, LONGEST_PAUSE, Failures
from engram.actors.pool import ActorFailureError
from engram.envs.arrays import ContractError


def survive(failures: Failures, number: int, trace: str = "trace", unrolls: int = 0) -> None:
    failures.add(number, trace)
    for _ in range(unrolls):
        failures.forgive(number)


def test_replacements_that_do_not_last_are_a_crash_loop() -> None:
    failures = Failures(2, lambda _: None)
    survive(failures, 0, "long ago", unrolls=FORGIVEN_AFTER)
    survive(failures, 0, "this row's first", unrolls=FORGIVEN_AFTER - 1)
    survive(failures, 0, "later", unrolls=FORGIVEN_AFTER - 1)
    with pytest.raises(ActorFailureError, match=r"actor 0 failed 3 times in a row; 2 are(?s:.*)\nthis row's first\Z"):
        failures.add(0, "last")


def test_a_lost_node_of_many_actors_is_one_failure_for_each() -> None:
    failures = Failures(1, lambda _: None)
    for number in range(100):
        failures.add(number, "the node is gone")
    with pytest.raises(ActorFailureError, match="actor 7 failed 2 times"):
        failures.add(7, "again")


def test_each_kind_of_failure_is_reported_once() -> None:
    reports: list[str] = []
    failures = Failures(9, reports.append)
    for pid in (11, 22, 33):
        failures.add(0, f"worker {pid} at 0x{pid:012x} died")
    failures.add(1, "the floor gave way")
    assert len(reports) == 2
    assert "worker 11" in reports[0]
    assert reports[1].endswith("the floor gave way")


def test_pauses_double_up_to_a_limit_and_end_with_the_row() -> None:
    failures = Failures(99, lambda _: None)
    assert failures.pause(0) == 0
    pauses = []
    for _ in range(12):
        failures.add(0, "trace")
        pauses.append(failures.pause(0))
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert max(pauses) == pauses[-1] == LONGEST_PAUSE
    assert failures.pause(1) == 0
    for _ in range(FORGIVEN_AFTER):
        failures.forgive(0)
    assert failures.pause(0) == 0


def test_an_environment_that_breaks_its_declaration_is_not_tried_again():
    failures = Failures(10, print)
    with pytest.raises(ActorFailureError, match=r"^mine returned an observation of float32$"):
        failures.add(0, "a traceback", ContractError("mine returned an observation of float32"))
