"""Every registered task keeps the contract: streams by index, exact save and restore, classes in range, names."""

import numpy as np
import pytest

from engram.envs.tasks.task import BLANK, NO_QUERY, PARTS, TASKS, examined_on, find_task, make_task, task_names


@pytest.mark.parametrize("name", task_names())
def test_batches_have_the_shapes_that_the_task_says(name):
    task = make_task(name, 3)
    for _ in range(3):
        batch = task.next()
        shape = (task.steps, 3)
        if task.symbols:
            assert batch.inputs.shape == shape
            assert batch.inputs.min() >= BLANK
            assert batch.inputs.max() < task.inputs
        else:
            assert batch.inputs.shape == (*shape, task.inputs)
            assert np.isfinite(batch.inputs).all()
        assert batch.targets.shape == (*shape, task.groups)
        assert batch.targets.min() >= NO_QUERY
        assert batch.targets.max() < task.classes
        assert batch.reset.shape == shape
        assert task.stream or (batch.reset[0].all() and not batch.reset[1:].any())
    assert 0 <= task.chance <= 0.5


@pytest.mark.parametrize("name", task_names())
def test_chance_is_not_below_the_likeliest_answer(name):
    """A constant answer needs no memory."""
    task = make_task(name, 200, seed=3)
    answers = np.concatenate([batch.targets.ravel() for batch in (task.next() for _ in range(4))])
    answers = answers[answers != NO_QUERY]
    share = np.bincount(answers).max() / len(answers)
    assert share <= task.chance + 4 * (task.chance * (1 - task.chance) / len(answers)) ** 0.5 + 0.01


def test_the_last_step_of_nth_farthest_alone_tells_twice_as_much_as_a_guess():
    task = make_task("nth-farthest", 500, seed=3)
    right = []
    for _ in range(4):
        batch = task.next()
        shown = batch.inputs[-1, :, -2 * task.classes :]
        m, n = shown[:, : task.classes].argmax(1), shown[:, task.classes :].argmax(1)
        guess = np.where(n == task.classes - 1, m, (m + 1) % task.classes)
        right.append(guess == batch.targets[-1, :, 0])
    assert abs(np.mean(right) - task.chance) < 0.04


@pytest.mark.parametrize("name", task_names())
def test_a_sequence_depends_on_its_index_alone(name):
    whole = make_task(name, 4, seed=3).next()
    _, parameters = find_task(name)
    task = type(make_task(name, 1))
    half = task(2, seed=3, first_index=2, **parameters).next()
    for ours, wanted in zip(half, whole, strict=True):
        assert np.array_equal(ours, wanted[:, 2:])


@pytest.mark.parametrize("name", task_names())
def test_a_restored_task_goes_on_bit_for_bit(name):
    task, other = make_task(name, 3, seed=1), make_task(name, 3, seed=2)
    for _ in range(3):
        task.next()
    other.restore(task.save())
    for _ in range(4):
        assert all(np.array_equal(a, b) for a, b in zip(task.next(), other.next(), strict=True))


@pytest.mark.parametrize("name", task_names())
def test_parts_and_seeds_are_different_data(name):
    seen = [make_task(name, 4, seed=seed, part=part).next() for seed in (0, 1) for part in PARTS]
    assert len({(b.inputs.tobytes(), b.targets.tobytes()) for b in seen}) == len(seen)


def test_a_wrong_name_names_the_nearest():
    with pytest.raises(ValueError, match=r"unknown task 'recal'; did you mean: recall"):
        make_task("recal", 1)
    with pytest.raises(ValueError, match=r"task 'recall' has no parameter 'dealy'; did you mean: delay"):
        make_task("recall", 1, {"dealy": 3})


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("recall", {"delay": [5, 2]}, r"delay is \[5, 2\]; expected an integer, or two: smallest, largest"),
        ("recall", {"delay": 1.5}, "delay is 1.5; expected an integer, or two: smallest, largest"),
        ("recall", {"noise": -1}, "noise is -1; allowed: at least 0"),
        ("recall", {"noise": float("inf")}, "noise is inf; allowed: at least 0"),
        ("copy", {"length": True}, "length is True; expected an integer, or two: smallest, largest"),
        ("capacity", {"pairs": 0}, "pairs is 0; allowed: at least 1"),
        ("interference", {"similarity": 2}, r"similarity is 2; allowed: 0\.\.1"),
        ("temporal-order", {"markers": 4}, "markers is 4; allowed: 2, 3"),
        ("temporal-order-3", {"slow": True}, "markers is 3 with slow; allowed: 2"),
        ("dictionary-4-1", {"num_pairs": 1, "length": 2}, "num_pairs is 1 for length 2; allowed: at least 2"),
        ("copy", {"order": "back"}, "order is 'back'; allowed: 'copy', 'reverse', 'double'"),
        ("addition", {"length": 10}, r"length is 10; allowed: 1\.\.9"),
        ("priority-sort", {"num_outputs": 21}, r"num_outputs is 21; allowed: 1\.\.20"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        make_task(name, 1, parameters)


def test_tests_go_through_the_curve_up_to_what_was_trained():
    assert [label for label, _ in examined_on("recall", {"delay": [1, 30]})] == [
        "delay=1",
        "delay=2",
        "delay=5",
        "delay=10",
        "delay=20",
        "delay=30",
    ]
    assert examined_on("recall", {"delay": [1, 30]})[-1][1]["delay"] == 30
    assert [p["length"] for _, p in examined_on("length-generalization", {})] == [5, 10, 15, 20, 30, 40]
    assert examined_on("copy", {}) == [("", {"order": "copy", "length": 5})]
    assert examined_on("copy", {"length": 3}) == [("", {"order": "copy", "length": 3})]


def test_every_task_of_the_papers_is_there():
    assert len(TASKS) == 22
    assert {name for name, entry in TASKS.items() if entry.twin} == {
        "recall",
        "capacity",
        "interference",
        "overwriting",
        "noise",
    }
