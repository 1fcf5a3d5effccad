"""Work on further threads: its results, its order, its errors."""

import threading

import pytest
import torch

from engram.agents import threads
from engram.agents.cores.registry import make_core


@pytest.fixture(params=[False, True], ids=["one thread", "two threads"])
def second_core(request, monkeypatch):
    monkeypatch.setattr(threads, "num_cores", lambda: 2)
    threads.use_threads(1 + request.param)
    yield request.param
    threads.use_threads(1)


def test_the_other_thread_records_nothing_and_uses_one_core(second_core):
    both = threading.Barrier(1 + second_core, timeout=20)

    def work(turn):
        both.wait()
        return threading.get_ident(), torch.is_grad_enabled(), torch.get_num_threads()

    others = [state for ident, *state in threads.share(work, 2) if ident != threading.get_ident()]
    assert others == [[False, 1]] * second_core


def test_shared_pieces_come_in_order_and_each_once(second_core):
    done = []

    def work(turn):
        done.append(turn)
        return -turn

    assert threads.share(work, 1000) == [-turn for turn in range(1000)]
    assert sorted(done) == list(range(1000))


def test_two_threads_share(second_core):
    both = threading.Barrier(2, timeout=20)

    def work(turn):
        if second_core:
            both.wait()  # passes only where another thread has a piece in hand
        return threading.get_ident()

    assert len(set(threads.share(work, 2))) == 1 + second_core


def test_pieces_may_share_pieces(second_core):
    assert threads.share(lambda turn: sum(threads.share(lambda part: part, turn)), 5) == [0, 0, 1, 3, 6]


@pytest.mark.parametrize("bad", range(6))
def test_an_error_in_a_shared_piece_is_raised(second_core, bad):
    with pytest.raises(ZeroDivisionError):
        threads.share(lambda turn: 1 // (turn - bad), 6)


def test_one_core_has_no_second_thread(monkeypatch):
    monkeypatch.setattr(threads, "num_cores", lambda: 1)
    threads.use_threads(2)
    assert set(threads.share(lambda turn: threading.get_ident(), 2)) == {threading.get_ident()}


@pytest.fixture
def one_thread():
    """Per operation, as rl-train has it: a product that several threads share is rounded in another way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "name",
    [
        "rmc",
        "lstm",
        "gru",
        "concrete",
        *(pytest.param(name, marks=pytest.mark.integration) for name in ("mnm-p", "mnm-g")),
    ],
)
def test_a_core_has_the_same_gradients_to_the_bit_for_every_number_of_threads(monkeypatch, one_thread, name):
    monkeypatch.setattr(threads, "num_cores", lambda: 8)
    results = []
    for count in (1, 2, 3, 5):
        threads.use_threads(count)
        torch.manual_seed(0)
        core = make_core(name, input_size=48)
        inputs = torch.randn(8, 70, 48, requires_grad=True)
        reset = torch.rand(8, 70) < 0.1
        outputs, *_ = core.unroll(inputs, reset, core.initial_state(70))
        results.append([outputs, *torch.autograd.grad(outputs.square().sum(), [inputs, *core.parameters()])])
    threads.use_threads(1)
    for others in results[1:]:
        for a, b in zip(results[0], others, strict=True):
            assert torch.equal(a, b)


def test_three_threads_share(monkeypatch):
    monkeypatch.setattr(threads, "num_cores", lambda: 3)
    threads.use_threads(3)
    together = threading.Barrier(3, timeout=20)
    threads.share(lambda turn: together.wait(), 3)  # passes only where three pieces are in hand at once
    threads.use_threads(1)
