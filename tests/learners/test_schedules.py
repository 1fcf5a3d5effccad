import pytest

from engram.learners.optimizers import scheduled


def test_values_at_steps() -> None:
    assert [scheduled("constant", 0.5, step, 100) for step in (0, 50, 1000)] == [0.5, 0.5, 0.5]
    assert [scheduled("linear", 0.5, step, 100) for step in (0, 25, 50, 100, 1000)] == [0.5, 0.375, 0.25, 0.0, 0.0]
    with pytest.raises(ValueError, match="unknown schedule 'cosine'; allowed: constant, linear"):
        scheduled("cosine", 0.5, 0, 100)  # pyright: ignore[reportArgumentType]


def test_a_warm_up_rises_to_the_schedules_value() -> None:
    assert [scheduled("constant", 0.5, step, 100, 10) for step in (0, 4, 9, 50)] == [0.05, 0.25, 0.5, 0.5]
    assert scheduled("linear", 0.5, 25, 100, 10) == 0.375
