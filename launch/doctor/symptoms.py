"""Symptoms in the metrics of a run, each with the flag that helps.

A rule examines the second half of the rows, the run's recent state, and reports nothing if its metrics are missing.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median, variance
from typing import Literal, NamedTuple

from ..config.run_config import RunConfig
from ..metrics.rows import Row

FEWEST = 8  # Minimum number of rows to judge a run
DROWNED = 10.0  # Ratio of the value loss to the other losses above which it dominates them
GONE, FLAT = 0.05, 0.97
"""Fractions of the entropy at the start: below the first it has collapsed, above the second it has not decreased."""
CLIPPED = 0.95  # Fraction of rows with a clipped gradient that counts as every row
OLD = 2.0  # Mean age of the acting weights, in updates, above which they are too old
SOLVED = 0.9  # Solved rate above which a low entropy is no symptom
WAITS = 0.5  # Fraction of time that the learner waits above which more actors help

Verdict = Literal["ok", "warning", "problem"]


class Finding(NamedTuple):
    """One line of rl-doctor's table."""

    what: str
    found: str
    verdict: Verdict
    advice: str = ""


Symptoms = Iterator[tuple[str, str, str]]  # What each is about, the description, and the advice


class Metrics:
    """Rows of metrics, and values of the second half of them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows, self.last = rows, rows[-1]
        self.returns = self.all("episode/return")
        self.quarter = quarter = len(self.returns) // 4
        self.rising = False
        """Whether the mean return of the last quarter exceeds that of the first by twice the standard error of the
        difference."""
        if quarter >= 2:
            first, last = self.returns[:quarter], self.returns[-quarter:]
            error = math.sqrt((variance(first) + variance(last)) / quarter)
            self.rising = fmean(last) - fmean(first) > 2 * error
        self.solved = self.mean("episode/solved") >= SOLVED

    def all(self, name: str) -> list[float]:
        """Values of a metric in all rows that have it."""
        return [row[name] for row in self.rows if name in row]

    def late(self, name: str) -> list[float]:
        """Values of a metric in the second half of the rows."""
        return [row[name] for row in self.rows[len(self.rows) // 2 :] if name in row]

    def mean(self, name: str) -> float:
        """Mean of the late values; 0 without any."""
        return fmean(self.late(name) or [0.0])

    def typical(self, name: str) -> float | None:
        """Median of the absolute late values."""
        return median(map(abs, values)) if (values := self.late(name)) else None


def symptoms(rows: Sequence[Row], config: RunConfig) -> list[Finding]:
    """Return all symptoms, or a single finding if there are none or if it is too early to judge."""
    if len(rows) < FEWEST:
        description = f"{len(rows)} rows of metrics; at least {FEWEST} are needed to judge"
        return [Finding("metrics", description, "ok", "wait, or lower --log-every")]
    metrics = Metrics(rows)
    reported = [symptom for rule in (value_loss, entropy, updates, episodes) for symptom in rule(metrics, config)]
    findings = [Finding(what, description, "warning", advice) for what, description, advice in reported]
    return findings or [Finding("metrics", f"{len(rows)} rows of metrics, no problems found", "ok")]


def value_loss(metrics: Metrics, config: RunConfig) -> Symptoms:
    """Report a value loss that is so large that it dominates learning."""
    value, policy, entropy = (metrics.typical(f"loss/{name}") for name in ("value", "policy", "entropy"))
    if value is None or policy is None or value <= DROWNED * (policy + (entropy or 0.0)):
        return
    norm, most = metrics.typical("learner/grad_norm"), config.learner.max_grad_norm
    if most and norm is not None and norm <= most:
        return  # the clip does not scale the other losses' gradients down
    times = value / max(policy + (entropy or 0.0), 1e-12)
    flags = [] if config.agent.normalize_returns else ["--normalize-returns"]
    if most and norm is not None:
        flags.append(f"--max-grad-norm {2 * norm:.2g}")
    description = f"{value:.3g}, {min(times, 1e6):,.0f} times the sum of policy and entropy loss: it dominates learning"
    yield "value loss", description, ", or ".join([*flags, f"--value-cost {config.learner.value_cost / 20:.2g}"])


def entropy(metrics: Metrics, config: RunConfig) -> Symptoms:
    """Report a policy that is certain of actions with low returns, or as uncertain as at the start."""
    values, cost = metrics.all("policy/entropy"), config.learner.entropy_cost
    if len(values) < FEWEST or metrics.rising:
        return
    quarter = len(values) // 4
    first, last = max(values[:quarter]), median(values[-quarter:])
    if first > 0 and last < GONE * first and not metrics.solved:
        advice = f"--entropy-cost {10 * cost:.2g}" if cost else "--entropy-cost 0.01"
        yield "entropy", f"{last:.3g} nats of {first:.3g}: the policy no longer explores", advice
    elif first > 0 and last > FLAT * first:
        advice = f"--lr {3 * config.learner.lr:.2g}, or --entropy-cost {cost / 5:.2g}"
        yield "entropy", f"{last:.3g} nats, as at the start: the policy does not learn", advice


def updates(metrics: Metrics, config: RunConfig) -> Symptoms:
    """Report gradients that are always clipped, skipped updates, and acting weights much older than the learner's."""
    most, norms = config.learner.max_grad_norm, metrics.late("learner/grad_norm")
    if most and norms and sum(norm > most for norm in norms) >= CLIPPED * len(norms):
        value, prediction = (metrics.typical(f"loss/{name}") or 0.0 for name in ("value", "prediction"))
        cost = "prediction" if prediction > value else "value"
        advice = f"--max-grad-norm {2 * median(norms):.2g}, or a lower --{cost}-cost"
        yield "gradient", f"norm {median(norms):.3g}, clipped to {most:g} at every update", advice
    if count := metrics.last.get("learner/skipped", 0.0):
        advice = f"--lr {config.learner.lr / 3:.2g}, or a lower --max-grad-norm; or {config.env} returned nan"
        yield "updates", f"{count:.0f} skipped because the loss was not finite", advice
    if (mean_lag := metrics.mean("perf/policy_lag")) > OLD:
        yield "policy lag", f"{mean_lag:.1f} updates", "--max-lag 1, or fewer --num-actors"


def episodes(metrics: Metrics, config: RunConfig) -> Symptoms:
    """Report that no episode has ended, a return that has not risen, and a learner that waits most of the time."""
    if not metrics.all("episode/length"):
        steps = metrics.last["step"] / max(config.num_members * config.columns, 1)
        description = f"none has ended in about {steps:,.0f} steps per environment"
        yield "episodes", description, "a step limit: --env-args max_episode_steps=500 (or max_steps)"
    values, quarter = metrics.returns, metrics.quarter
    if len(values) >= FEWEST and not metrics.rising and not metrics.solved:
        description = f"{fmean(values[:quarter]):.3g} at the start, {fmean(values[-quarter:]):.3g} now: flat"
        more = "" if config.agent.prediction_size else "--prediction-size 128, "
        yield "return", description, f"see the other lines; else {more}more steps, or an easier environment first"
    waits = metrics.mean("perf/queue_wait")
    if not config.local and not config.synchronous and waits > WAITS:
        more = "auto" if config.fixed_actors is None else 2 * config.fixed_actors
        yield "learner", f"waits {waits:.0%} of the time", f"--num-actors {more}, if there are cores"
