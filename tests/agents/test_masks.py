"""Masked policies against a plain computation over the valid actions: samples, probabilities, entropy, KL."""

import math

import pytest
import torch

from engram.agents import specs

SPEC = specs.ChoiceSpec((5, 3))


def logits_and_mask() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(64, 8, generator=generator)
    mask = torch.rand(64, 8, generator=generator) < 0.5
    mask[:, 1] = mask[:, 6] = True
    return logits, mask


def plain(logits: torch.Tensor, mask: torch.Tensor) -> list[list[float]]:
    """Probabilities of each choice's options, of one environment: over the valid ones alone."""
    found = []
    for start, end in ((0, 5), (5, 8)):
        weights = [math.exp(logits[k].item()) if mask[k] else 0.0 for k in range(start, end)]
        found.append([weight / sum(weights) for weight in weights])
    return found


def test_no_invalid_action_in_a_million_samples_and_frequencies_are_the_probabilities():
    logits, mask = torch.zeros(1_000_000, 4), torch.tensor([True, False, True, False])
    logits[:, 1], logits[:, 2] = 50.0, 1.0
    drawn = specs.sample(specs.ChoiceSpec((4,)), specs.masked(logits, mask.expand_as(logits)))
    counts = torch.bincount(drawn, minlength=4)
    assert counts[1] == counts[3] == 0
    assert counts[2] / 1e6 == pytest.approx(math.e / (1 + math.e), abs=0.003)


def test_noise_of_zero_does_not_choose_an_invalid_action():
    class Zeros(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result.zero_() if func is torch.Tensor.exponential_ else result

    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]])
    with Zeros():
        assert specs.sample(specs.ChoiceSpec((3,)), logits).item() == 1


def test_probabilities_are_exact():
    logits, mask = logits_and_mask()
    found = specs.log_policy(SPEC, specs.masked(logits, mask)).exp()
    expected = torch.tensor([[p for part in plain(*each) for p in part] for each in zip(logits, mask, strict=True)])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert (found[~mask] == 0).all()
    assert specs.best(SPEC, specs.masked(logits, mask)).shape == (64, 2)


def test_entropy_and_divergence_over_valid_actions_have_finite_exact_gradients():
    logits, mask = logits_and_mask()
    other = logits.roll(1, 0)
    p, q = ([plain(*each) for each in zip(x, mask, strict=True)] for x in (logits, other))
    wanted = [-sum(a * math.log(a) for part in each for a in part if a) for each in p]
    log_p = specs.log_policy(SPEC, specs.masked(logits.requires_grad_(), mask))
    log_q = specs.log_policy(SPEC, specs.masked(other.detach(), mask))
    torch.testing.assert_close(specs.entropy(SPEC, log_p), torch.tensor(wanted), atol=1e-5, rtol=1e-5)
    wanted = [
        sum(b * math.log(b / a) for one, two in zip(*each, strict=True) for a, b in zip(one, two, strict=True) if b)
        for each in zip(p, q, strict=True)
    ]
    torch.testing.assert_close(specs.kl_divergence(SPEC, log_q, log_p), torch.tensor(wanted), atol=1e-5, rtol=1e-5)

    total = specs.entropy(SPEC, log_p).sum() + specs.kl_divergence(SPEC, log_q, log_p).sum()
    gradient = torch.autograd.grad(total, logits)[0]
    assert (gradient[~mask] == 0).all()
    for b in range(8):  # the same of a softmax over the valid options alone
        valid = [mask[b, :5].nonzero()[:, 0], 5 + mask[b, 5:].nonzero()[:, 0]]
        for chosen in valid:
            part = logits.detach()[b, chosen].double().requires_grad_()
            log_part, log_other = part.log_softmax(0), other.detach()[b, chosen].double().log_softmax(0)
            term = -(log_part.exp() * log_part).sum() + (log_other.exp() * (log_other - log_part)).sum()
            expected = torch.autograd.grad(term, part)[0].float()
            torch.testing.assert_close(gradient[b, chosen], expected, atol=1e-5, rtol=1e-4)
