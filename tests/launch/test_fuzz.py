"""Any words: a command does its work or says what is wrong; no traceback, no hang."""

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzzing import attempt, command_line

QUIETLY = settings(
    max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@QUIETLY
@given(random=st.randoms(use_true_random=False))
def test_words(random: Random) -> None:
    command, words = command_line(random)
    outcome = attempt(command, words)
    assert outcome.fine, (command, words, outcome)
