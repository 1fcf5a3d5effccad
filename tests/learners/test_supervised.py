"""Teaching a memory: losses and scores by hand, blank steps, streams, exact resume."""

import copy
import math

import pytest
import torch

from engram.envs.tasks.task import make_task
from engram.learners.supervised import (
    Score,
    SequenceModel,
    Sequences,
    SupervisedConfig,
    SupervisedLearner,
    examine,
    score,
    to_tensors,
    wilson,
)

CPU = torch.device("cpu")
SMALL = SupervisedConfig(batch_size=4, lr=1e-2)
ARGS = {
    "feedforward": {},
    "lstm": {"hidden_size": 8},
    "lru": {"hidden_size": 8, "state_size": 6},
    "mnm-p": {"hidden_size": 8, "memory_size": 4},
}


def made(name, core, config=SMALL, seed=0):
    task = make_task(name, config.batch_size, seed=seed)
    torch.manual_seed(seed)
    return task, SupervisedLearner(SequenceModel(task, core, ARGS[core], config), config, task.stream)


def test_the_loss_is_the_mean_cross_entropy_of_what_is_asked():
    task, learner = made("priority-sort", "lstm")
    batch = to_tensors(task.next(), CPU)
    state = learner.model.core.initial_state(4)
    logits, _, _ = learner.model(batch, state)
    total, count = 0.0, 0
    for answer, wanted in zip(logits.tolist(), batch.targets[(batch.targets >= 0).any(-1)].tolist(), strict=True):
        for pair, bit in zip(answer, wanted, strict=True):
            total += math.log(sum(map(math.exp, pair))) - pair[bit]
            count += 1
    metrics = learner.step(batch)
    assert metrics["loss/cross_entropy"] == pytest.approx(total / count, rel=1e-5)
    assert metrics["loss/total"] == metrics["loss/cross_entropy"]
    assert count == 16 * 8 * 4


@pytest.mark.integration
def test_the_cores_own_loss_is_added_with_its_weight():
    losses = {}
    for weight in (0.0, 1.0, 3.0):
        task, learner = made("copy", "mnm-p", SupervisedConfig(batch_size=4, auxiliary_cost=weight))
        losses[weight] = learner.step(to_tensors(task.next(), CPU))
    assert losses[0.0]["loss/auxiliary"] == 0
    assert losses[3.0]["loss/auxiliary"] == pytest.approx(3 * losses[1.0]["loss/auxiliary"])
    assert losses[1.0]["loss/total"] == pytest.approx(losses[0.0]["loss/total"] + losses[1.0]["loss/auxiliary"])


def test_symbols_are_shown_one_hot_or_embedded_and_blanks_as_zeros():
    task, learner = made("copy", "lstm")
    symbols = torch.tensor([[0, 10], [-1, 3]])
    shown = learner.model.shown(symbols)
    assert shown.shape == (2, 2, 11)
    assert shown[0, 1].tolist() == [0.0] * 10 + [1.0]
    assert not shown[1, 0].any()
    embedding = SequenceModel(task, "lstm", ARGS["lstm"], SupervisedConfig(embedding_size=5))
    shown = embedding.shown(symbols)
    assert shown.shape == (2, 2, 5)
    assert not shown[1, 0].any()
    assert torch.equal(shown[0, 1], embedding.embedding.weight[10])


@pytest.mark.parametrize("name", ["temporal-order", "copy"])
def test_only_a_streams_state_is_carried_on(name):
    task, learner = made(name, "lstm")
    learner.step(to_tensors(task.next(), CPU))
    carried = learner.state_dict()["state"]
    assert (carried is None) == (name == "copy")
    if carried is not None:
        assert all(leaf.abs().sum() > 0 and not leaf.requires_grad for leaf in carried)


@pytest.mark.parametrize("core", list(ARGS))
@pytest.mark.parametrize("name", ["temporal-order", "copy"])
def test_a_resumed_learner_goes_on_bit_for_bit(name, core):
    task, learner = made(name, core)
    for _ in range(2):
        learner.step(to_tensors(task.next(), CPU))
    other_task, other = made(name, core, seed=7)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))  # as from a file: optimizers hand on their own tensors
    other_task.restore(task.save())
    for _ in range(2):
        batch = to_tensors(task.next(), CPU)
        assert learner.step(batch) == other.step(to_tensors(other_task.next(), CPU))
    for ours, wanted in zip(other.model.parameters(), learner.model.parameters(), strict=True):
        assert torch.equal(ours, wanted)


def test_an_update_that_is_not_finite_is_left_out():
    task, learner = made("recall", "lstm")
    batch = to_tensors(task.next(), CPU)
    before = [p.clone() for p in learner.model.parameters()]
    metrics = learner.step(batch._replace(inputs=torch.full_like(batch.inputs, torch.nan)))
    assert metrics["learner/skipped"] == 1
    assert all(torch.equal(a, b) for a, b in zip(learner.model.parameters(), before, strict=True))


def test_a_stream_whose_state_is_not_finite_begins_anew():
    """Otherwise no later update would be finite, whatever the weights."""
    task, learner = made("temporal-order", "lstm")
    learner.step(to_tensors(task.next(), CPU))
    saved = learner.state_dict()
    saved["state"][0][1] = math.nan
    learner.load_state_dict(saved)
    learner.step(to_tensors(task.next(), CPU))
    found = learner.step(to_tensors(task.next(), CPU))
    assert found["learner/skipped"] == 1, "the one that met it"
    assert math.isfinite(found["loss/total"])


def test_a_batch_that_asks_nothing_is_no_error():
    task, learner = made("temporal-order", "lstm")
    batch = to_tensors(task.next(), CPU)
    nothing = batch._replace(targets=torch.full_like(batch.targets, -1))
    assert learner.step(nothing)["loss/total"] == 0


def test_scores_count_answers_and_sequences():
    targets = torch.full((3, 2, 2), -1)
    targets[0, 0], targets[2, 0], targets[1, 1] = torch.tensor([0, 1]), torch.tensor([1, 1]), torch.tensor([0, -1])
    logits = torch.zeros(3, 2, 2)  # in the order of the steps: (0, 0), (1, 1), (2, 0)
    logits[0, 0, 0] = logits[0, 1, 1] = logits[1, 0, 0] = logits[2, 0, 1] = logits[2, 1, 0] = math.log(3)
    found = score(logits, targets)
    assert (found.right, found.answers, found.perfect, found.sequences) == (4, 5, 1, 2)
    assert found.nats == pytest.approx(-4 * math.log(0.75) - math.log(0.25))
    assert found.plus(Score(1, 2, 3, 4, 5.0))[:4] == (5, 7, 4, 6)


def test_wilsons_interval():
    """Wilson 1927: the shares for which `seen` lies two standard deviations off."""
    low, high = wilson(0.9, 50)
    for end in (low, high):
        assert abs(0.9 - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / 50))
    assert wilson(1.0, 20)[1] == 1
    assert wilson(0.5, 0) == (0, 1)
    score = Score(right=90, answers=1000, sequences=10).plain()
    assert (score["low"], score["high"]) == wilson(0.09, 10)


def test_examining_knows_no_training():
    _, learner = made("recall", "lstm")
    before = copy.deepcopy(learner.model.state_dict())
    found = examine(learner.model, make_task("recall", 32, part="test"), 3)
    assert found.answers == found.sequences == 96
    assert all(torch.equal(a, b) for a, b in zip(learner.model.state_dict().values(), before.values(), strict=True))


def test_a_twin_is_learned_in_a_few_updates_and_its_task_is_not():
    """The memory-free twin shows what it asks for."""
    config = SupervisedConfig(batch_size=64, lr=3e-2)
    scores = list[Score]()
    for name in ("recall-twin", "recall"):
        task = make_task(name, config.batch_size, {"delay": 5})
        torch.manual_seed(0)
        learner = SupervisedLearner(SequenceModel(task, "feedforward", {}, config), config, task.stream)
        for _ in range(60):
            learner.step(to_tensors(task.next(), CPU))
        scores.append(examine(learner.model, make_task(name, 256, {"delay": 5}, part="test"), 2))
    assert scores[0].accuracy > 0.95
    assert scores[1].accuracy < 0.25


def test_sequences_are_tensors_of_the_batch():
    batch = make_task("recall", 2).next()
    tensors = to_tensors(batch, CPU)
    assert isinstance(tensors, Sequences)
    assert all(tensor.numpy().dtype == array.dtype for tensor, array in zip(tensors, batch, strict=True))


@pytest.mark.parametrize(("field", "value"), [("lr", 0), ("batch_size", 0), ("max_grad_norm", -1), ("bptt_length", -1)])
def test_impossible_settings_are_named(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}; allowed"):
        SupervisedConfig(**{field: value})
