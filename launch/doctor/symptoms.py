"""Symptoms in the metrics of a run, each with the flag that helps. Plain functions over rows of metrics.

A rule examines the second half of the rows, the run's recent state, and reports nothing if its metrics are missing.
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median, variance

from ..config.run_config import RunConfig
from ..metrics.rows import Row
from .checks import Finding

FEWEST = 8  # Minimum number of rows to judge a run
DROWNED = 10.0  # Ratio of the value loss to the other losses above which it dominates them
GONE, FLAT = 0.05, 0.97
"""Fractions of the entropy at the start: below the first it has collapsed, above the second it has not decreased."""
CLIPPED = 0.95  # Fraction of rows with a clipped gradient that counts as every row
OLD = 2.0  # Mean age of the acting weights, in updates, above which they are too old
SOLVED = 0.9  # Solved rate above which a low entropy is no symptom
WAITS = 0.5  # Fraction of time that the learner waits above which more actors help

Rule = Callable[[Sequence[Row], RunConfig], Finding | None]


def symptoms(rows: Sequence[Row], config: RunConfig) -> list[Finding]:
    """Return all symptoms, or a single finding if there are none or if it is too early to judge."""
    if len(rows) < FEWEST:
        description = f"{len(rows)} rows of metrics; at least {FEWEST} are needed to judge"
        return [Finding("metrics", description, "ok", "wait, or lower --log-every")]
    findings = [finding for rule in RULES if (finding := rule(rows, config)) is not None]
    return findings or [Finding("metrics", f"{len(rows)} rows of metrics, no problems found", "ok")]


def value_loss(rows: Sequence[Row], config: RunConfig) -> Finding | None:
    """Report a value loss that is so large that it dominates learning."""
    late = _late(rows)
    value, policy, entropy = (_typical(late, f"loss/{name}") for name in ("value", "policy", "entropy"))
    if value is None or policy is None or value <= DROWNED * (policy + (entropy or 0.0)):
        return None
    norm, most = _typical(late, "learner/grad_norm"), config.learner.max_grad_norm
    if most and norm is not None and norm <= most:
        return None  # the clip does not scale the other losses' gradients down
    times = value / max(policy + (entropy or 0.0), 1e-12)
    flags = [] if config.agent.normalize_returns else ["--normalize-returns"]
    if most and norm is not None:
        flags.append(f"--max-grad-norm {2 * norm:.2g}")
    description = f"{value:.3g}, {min(times, 1e6):,.0f} times the sum of policy and entropy loss: it dominates learning"
    advice = ", or ".join([*flags, f"--value-cost {config.learner.value_cost / 20:.2g}"])
    return Finding("value loss", description, "warning", advice)


def entropy(rows: Sequence[Row], config: RunConfig) -> Finding | None:
    """Report a policy that is certain of actions with low returns, or as uncertain as at the start."""
    values = _values(rows, "policy/entropy")
    if len(values) < FEWEST:
        return None
    first, last = max(values[: len(values) // 4]), median(values[-(len(values) // 4) :])
    solved = _mean(_late(rows), "episode/solved")
    cost = config.learner.entropy_cost
    if first > 0 and last < GONE * first and (solved is None or solved < SOLVED) and not _rising(rows):
        advice = f"--entropy-cost {10 * cost:.2g}" if cost else "--entropy-cost 0.01"
        return Finding("entropy", f"{last:.3g} nats of {first:.3g}: the policy no longer explores", "warning", advice)
    if first > 0 and last > FLAT * first and not _rising(rows):
        advice = f"--lr {3 * config.learner.lr:.2g}, or --entropy-cost {cost / 5:.2g}"
        return Finding("entropy", f"{last:.3g} nats, as at the start: the policy does not learn", "warning", advice)
    return None


def gradients(rows: Sequence[Row], config: RunConfig) -> Finding | None:
    """Report that every gradient is clipped: the size of the step no longer depends on the loss."""
    most = config.learner.max_grad_norm
    norms = _values(_late(rows), "learner/grad_norm")
    if not most or not norms or sum(norm > most for norm in norms) < CLIPPED * len(norms):
        return None
    description = f"norm {median(norms):.3g}, clipped to {most:g} at every update"
    value, prediction = (_typical(_late(rows), f"loss/{name}") or 0.0 for name in ("value", "prediction"))
    cost = "prediction" if prediction > value else "value"
    return Finding(
        "gradient", description, "warning", f"--max-grad-norm {2 * median(norms):.2g}, or a lower --{cost}-cost"
    )


def skipped(rows: Sequence[Row], config: RunConfig) -> Finding | None:
    """Report updates that were skipped because a loss was not finite."""
    count = rows[-1].get("learner/skipped", 0.0)
    if not count:
        return None
    for cause in ("observation", "reward"):
        if any(f"learner/skipped_{cause}" in row for row in rows):
            description = f"{count:.0f} skipped because {config.env} returned a {cause} that is nan or inf"
            return Finding("updates", description, "warning", f"fix the environment {config.env}, which returned it")
    description = f"{count:.0f} skipped because the loss was not finite"
    return Finding("updates", description, "warning", f"--lr {config.learner.lr / 3:.2g}, or a lower --max-grad-norm")


def lag(rows: Sequence[Row], config: RunConfig) -> Finding | None:
    """Report acting weights that are much older than the learner's."""
    mean_lag = _mean(_late(rows), "perf/policy_lag")
    if mean_lag is None or mean_lag <= OLD:
        return None
    return Finding("policy lag", f"{mean_lag:.1f} updates", "warning", "--max-lag 1, or fewer --num-actors")


def episodes(rows: Sequence[Row], config: RunConfig) -> Finding | None:
    """Report that no episode has ended, so that there are no returns."""
    if any("episode/length" in row for row in rows):
        return None
    steps = rows[-1]["step"] / max(config.num_members * config.columns, 1)
    description = f"none has ended in about {steps:,.0f} steps per environment"
    return Finding("episodes", description, "warning", "a step limit: --env-args max_episode_steps=500 (or max_steps)")


def returns(rows: Sequence[Row], config: RunConfig) -> Finding | None:
    """Report a return that has not risen since the start."""
    values = _values(rows, "episode/return")
    solved = _mean(_late(rows), "episode/solved")
    if len(values) < FEWEST or _rising(rows) or (solved is not None and solved >= SOLVED):
        return None
    quarter = len(values) // 4
    description = f"{fmean(values[:quarter]):.3g} at the start, {fmean(values[-quarter:]):.3g} now: flat"
    more = "" if config.agent.prediction_size else "--prediction-size 128, "
    return Finding(
        "return", description, "warning", f"see the other lines; else {more}more steps, or an easier environment first"
    )


def waiting(rows: Sequence[Row], config: RunConfig) -> Finding | None:
    """Report a learner that waits for its actors most of the time."""
    waits = _mean(_late(rows), "perf/queue_wait")
    if config.local or config.synchronous or waits is None or waits <= WAITS:
        return None
    more = "auto" if config.fixed_actors is None else 2 * config.fixed_actors
    return Finding("learner", f"waits {waits:.0%} of the time", "warning", f"--num-actors {more}, if there are cores")


RULES: tuple[Rule, ...] = (value_loss, entropy, gradients, skipped, lag, episodes, returns, waiting)


def _late(rows: Sequence[Row]) -> Sequence[Row]:
    return rows[len(rows) // 2 :]


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in rows if name in row]


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = _values(rows, name)
    return fmean(values) if values else None


def _typical(rows: Sequence[Row], name: str) -> float | None:
    """The median absolute value of a loss."""
    values = _values(rows, name)
    return median(abs(value) for value in values) if values else None


def _rising(rows: Sequence[Row]) -> bool:
    """Whether the mean return of the last quarter exceeds that of the first by twice the standard error of the
    difference."""
    values = _values(rows, "episode/return")
    quarter = len(values) // 4
    if quarter < 2:
        return False
    first, last = values[:quarter], values[-quarter:]
    return fmean(last) - fmean(first) > 2 * math.sqrt((variance(first) + variance(last)) / quarter)
