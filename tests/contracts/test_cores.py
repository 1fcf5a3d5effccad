"""Every registered core passes the certificate, at small sizes; feedforward fails it by its lack of memory alone."""

import pytest
import torch

from engram.agents.certificate.certificate import CHECKS
from engram.agents.certificate.probe import make_probe
from engram.agents.cores import core_names, make_core
from engram.agents.cores.core import state_leaves
from engram.agents.cores.registry import core_class, core_parameters
from engram.base import compiled
from engram.base.errors import EngramError
from engram.base.sources import sources
from small_cores import INPUTS, SMALL, small_core

VARIANTS = [
    ("rmc", {"gate": "unit", "num_blocks": 2}),
    ("rmc", {"gate": None, "key_size": 5}),
    ("fwm", {"write_scale": 1 / 16, "beta_bias": 1.0}),
    ("mnm-p", {"layer_norm": True}),
    ("mnm-g", {"layer_norm": True}),
    ("mnm-g", {"momentum": True, "decay": True}),
    ("concrete", {"num_pools": 1, "base": 3.0}),
    ("concrete", {"unit_views": True}),
    ("lru", {"num_blocks": 2}),
    ("min-gru", {"num_layers": 1}),
    ("gtrxl", {"memory_length": 3, "num_layers": 1}),
    ("delta-net", {"gated": True, "negative": True, "num_writes": 2}),
    ("mamba2", {"s6": True}),
    ("mamba2", {"conv_size": 1}),
    ("shm", {"num_thetas": 1}),
]
OF_VARIANTS = (
    *("shapes and types", "step equals unroll", "chunks do not matter", "a reset clears the state"),
    *("nothing leaks past a reset", "gradient reaches back", "every parameter learns"),
)
"""Lines that options may break; whether a variant learns in a few updates is not its contract."""


def skip_what_is_not_compiled(name):
    """With ENGRAM_COMPILED=0: a core without a compiled route, direct or through a part, is the same as with 1."""
    if not compiled.enabled and not any("/fast/" in file for file in sources(core_class(name).__module__)):
        pytest.skip(f"{name} has no compiled route to switch off")


@pytest.fixture(scope="module")
def case(request):
    """A core's name, its options and the probe that all checks share."""
    name, options = request.param
    skip_what_is_not_compiled(name)
    torch.manual_seed(0)
    return name, options, make_probe(lambda: small_core(name, **options), INPUTS, long_run=300, recall_updates=300)


LONG = ("gradient cut at bptt_length", "recalls a cue")
"""Half of the certificate's time."""


def by_default(name, options, line):
    """Whether the default set has this: most lines for two cores, one line for every core."""
    return not options and (line == "step equals unroll" or (name in ("lstm", "fwm") and line not in LONG))


EVERY = [
    pytest.param(
        (name, options),
        line,
        check,
        id="-".join([name, *options, line]),
        marks=[] if by_default(name, options, line) else pytest.mark.integration,
    )
    for name, options in [*((name, {}) for name in core_names()), *VARIANTS]
    for line, check in CHECKS
    if not options or line in OF_VARIANTS
]


@pytest.mark.parametrize(("case", "line", "check"), EVERY, indirect=["case"])
def test_core_keeps_the_contract(case, line, check):
    name, _, probe = case
    torch.manual_seed(0)
    if name in ("feedforward", "frame-stack") and line == "recalls a cue":
        with pytest.raises(EngramError, match="no memory" if name == "feedforward" else "guessing"):
            check(probe)
    else:
        check(probe)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["lstm", "rmc", "mnm-g", "concrete", "fwm", "lru", "delta-net", "gtrxl"])
@pytest.mark.parametrize("bptt_length", [300, 20])
def test_gradient_is_cut_at_the_periods_of_the_lp_rnn_paper(name, bptt_length):
    """One core for each way to unroll 300 steps: outputs from a boundary on get nothing from before it, those just
    before it do."""
    skip_what_is_not_compiled(name)
    torch.manual_seed(0)
    core = small_core(name)
    inputs = torch.randn(300, 1, INPUTS, requires_grad=True)
    no_reset = torch.zeros(300, 1, dtype=torch.bool)
    outputs, _, loss = core.unroll(inputs, no_reset, core.initial_state(1), bptt_length)
    ends = outputs.sum((1, 2)) + (0 if loss is None else loss.sum(1))
    boundary = 300 - bptt_length  # the start of the last piece
    (gradient,) = torch.autograd.grad(ends[boundary:].sum(), inputs)
    reached = gradient.abs().sum((1, 2)) > 0
    assert reached[:boundary].sum() == 0
    assert reached[boundary:].all()
    assert_reaches_back(core, inputs, no_reset, bptt_length, boundary)


def assert_reaches_back(core, inputs, no_reset, bptt_length, boundary):
    """The last step of all gets gradient to the step before it: the piece is not cut where no boundary is."""
    outputs, _, _ = core.unroll(inputs, no_reset, core.initial_state(1), bptt_length)
    (gradient,) = torch.autograd.grad(outputs[-1].sum(), inputs)
    assert gradient[-2].any()
    assert not gradient[:boundary].any()


@pytest.mark.parametrize("name", core_names())
def test_initial_state_is_a_fresh_copy(name):
    """Writing into a state that an actor holds changes no later episode."""
    core = small_core(name)
    held = core.initial_state(3)
    with torch.no_grad():
        for leaf in state_leaves(held):
            leaf.fill_(7)
    again = state_leaves(core.initial_state(3))
    assert all(not (leaf == 7).any() for leaf in again)


@pytest.mark.parametrize("name", core_names())
def test_impossible_sizes_and_unknown_options_are_named(name):
    for option in core_parameters(name).keys() & SMALL.keys():
        for value in (0, -1, 2.5):
            with pytest.raises(ValueError, match=rf"{option} is {value}; allowed: at least 1"):
                make_core(name, INPUTS, **{option: value})
    with pytest.raises(ValueError, match="has no option 'hiden_size'; did you mean"):
        make_core(name, INPUTS, hiden_size=3)
