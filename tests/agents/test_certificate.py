"""The certificate catches cores that are wrong in one way, on the line that says so, and passes a right one."""

import pytest
import torch

import broken_cores
from engram.agents.certificate.certificate import CHECKS, certify
from engram.agents.certificate.probe import make_probe
from engram.base.errors import EngramError

NAMES = [name for name, _ in CHECKS]


def failures(cls, names, input_size=6):
    """Those of the lines `names` that fail, with what they say."""
    torch.manual_seed(0)
    try:
        probe = make_probe(lambda: cls(input_size), input_size, long_run=5000, recall_updates=100)
    except EngramError as problem:
        return {NAMES[0]: str(problem)}
    seen = {}
    for name, check in CHECKS:
        if name in names:
            try:
                check(probe)
            except Exception as problem:
                seen[name] = str(problem)
    return seen


@pytest.mark.integration
def test_a_right_core_passes_every_line():
    lines = list(certify(lambda: broken_cores.Toy(6), 6, long_run=1000))
    assert [line.name for line in lines] == NAMES
    assert [(line.name, line.detail) for line in lines if not line.passed] == []


CASES = [
    ("NoNamedTuple", "shapes and types", "not tuple"),
    ("OtherUnroll", "step equals unroll", "outputs differ by"),
    ("ZeroAtStart", "chunks do not matter", "differ by"),
    ("MultipliedReset", "a reset clears the state", "in the long sequence and alone"),
    ("MultipliedResetFromZero", "nan does not spread", "after the reset of an environment with nan"),
    ("LeakyReset", "nothing leaks past a reset", "with different histories"),
    ("SecretState", "nothing leaks past a reset", "with different histories"),
    ("LeakingRows", "environments are independent", "environment 0 in a different batch"),
    ("RowsByGradient", "environments are independent", "gradient passes from one environment to another"),
    ("LeakingRows", "nan does not spread", "alongside an environment with nan"),
    ("IgnoresState", "gradient reaches back", "no gradient"),
    ("Detached", "gradient reaches back", "no gradient"),
    ("DetachedAtTimes", "gradient reaches back", "to the input at t = 1"),
    ("SharedLoss", "a reset clears the state", "in the long sequence and alone"),
    ("SharedLoss", "environments are independent", "environment 0 in a different batch"),
    ("NeverCut", "gradient cut at bptt_length", "bptt_length 1"),
    ("CutTooOften", "gradient cut at bptt_length", "bptt_length 3"),
    ("IdleParameter", "every parameter learns", "no gradient for unused"),
    ("SharedLayers", "every parameter learns", r"layers.0.weight = layers.1.weight"),
    ("HiddenConstant", "state_dict is complete", "a copy made from the state_dict"),
    ("Unpicklable", "state survives pickling", "Can't"),
    ("OtherWhenActing", "actor and learner agree", "outputs of learner and actor"),
    ("StaleWhenActing", "actor and learner agree", "after a change of the weights"),
    ("FastStepWithoutReset", "actor and learner agree", "outputs of learner and actor"),
    ("Explodes", "a long run stays finite", "not finite within"),
    ("Forgets", "recalls a cue", "guessing gives 50%"),
    ("Raises", "step equals unroll", "there is no slot 7"),
]


@pytest.mark.parametrize(("cls", "line", "says"), CASES)
def test_a_wrong_core_fails_on_the_right_line(cls, line, says):
    seen = failures(getattr(broken_cores, cls), {line})
    assert line in seen, f"{cls} passed '{line}'"
    assert says in seen[line]


def test_every_line_has_a_core_that_fails_it():
    assert {line for _, line, _ in CASES} == set(NAMES)


@pytest.mark.parametrize("cls", ["Detached", "IdleParameter", "HiddenConstant", "Forgets", "LeakyReset"])
def test_a_mistake_spares_the_lines_it_has_nothing_to_do_with(cls):
    others = {"shapes and types", "environments are independent", "state survives pickling", "nan does not spread"}
    spared = others - ({"nan does not spread"} if cls == "LeakyReset" else set())
    assert failures(getattr(broken_cores, cls), spared) == {}


def test_an_exception_in_the_core_is_a_failed_line_and_not_the_end():
    lines = list(certify(lambda: broken_cores.Raises(6), 6, long_run=100, recall_updates=10))
    assert [line.name for line in lines] == NAMES
    assert next(line.detail for line in lines if line.name == "step equals unroll") == (
        "raised IndexError: there is no slot 7"
    )


def test_a_state_of_the_wrong_kind_ends_the_certificate_with_its_line():
    lines = list(certify(lambda: broken_cores.NoNamedTuple(6), 6))
    assert [line.name for line in lines] == ["shapes and types"]
    assert "a NamedTuple of tensors, not tuple" in lines[0].detail
