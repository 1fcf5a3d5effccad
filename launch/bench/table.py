"""Conclusions of `rl-bench` from its measurements, and the table that shows them."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ..metrics.speed import Cost, Parts, speed_of_light

_PARTS = {
    "env": "environments, alone on 1 core",
    "infer": "inference, alone on 1 core",
    "infer_fused": "inference, fused kernel, alone on 1 core",
    "learn": "learner, alone on 1 core",
    "learn_fused": "learner, fused kernel, alone on 1 core",
    "env_busy": "environments, a core while all are busy",
    "infer_busy": "inference, a core while all are busy",
    "learn_busy": "learner, a core while all are busy",
}
_IDEALS = {
    "ideal": "ideal: {} times what one core does alone",
    "ideal_fused": "ideal: the same with the fused kernel",
    "ideal_busy": "ideal: what {} cores do together",
}
_FRACTIONS = {
    "fraction": "fraction of the ideal",
    "fraction_fused": "fraction with the fused kernel",
    "fraction_busy": "fraction of what the cores do together",
}


def rates_and_fractions(
    seconds: Mapping[str, float], reached: float, cores: int, learner_has_device: bool
) -> dict[str, float]:
    """Steps per second of each part, the ideals, and what fraction of them is reached.

    Args:
        seconds: per environment step, by part; `infer_fused` and `learn_fused`, if there, are torch's fused kernel, and
            `env_busy`, `infer_busy` and `learn_busy` a core's while the others do the same.
        reached: steps per second of training.
        cores: that training may use.
        learner_has_device: the learner does not take its share of the cores.
    """
    own = Parts(seconds["env"], seconds["infer"], seconds["learn"])
    ideals = {"ideal": speed_of_light(own, cores, learner_has_device)}
    if "learn_fused" in seconds:
        # The yardstick is the machine: where our own code beats the fused kernel, our own code is the yardstick.
        faster = Parts(own.env, min(own.infer, seconds["infer_fused"]), min(own.learn, seconds["learn_fused"]))
        ideals["ideal_fused"] = speed_of_light(faster, cores, learner_has_device)
    if "learn_busy" in seconds:
        together = Parts(*(seconds[f"{name}_busy"] for name in Parts._fields))
        ideals["ideal_busy"] = speed_of_light(together, cores, learner_has_device)
    rates = {name: 1 / each for name, each in seconds.items()} | ideals | {"reached": reached}
    fractions = {name.replace("ideal", "fraction"): round(reached / ideal, 4) for name, ideal in ideals.items()}
    return {name: round(rate, 1) for name, rate in rates.items()} | fractions


def processor_time(costs: Sequence[Mapping[str, Cost]], trained: Sequence[float]) -> dict[str, float]:
    """Microseconds of processor time per step: of each part, of training, and the share of the parts in the latter.

    Neighbours that take turns on the cores slow training down but cost it no processor time, so on a busy machine the
    share says more than the fraction of the ideal. What is missing to 1 goes into transport, copies and waiting loops.

    Args:
        costs: of the parts, per measurement.
        trained: processor seconds per step of training, per round.
    """
    parts = {name: 1e6 * sum(each[name].cpu for each in costs) / len(costs) for name in costs[0]}
    total = 1e6 * sum(trained) / len(trained)
    share = (parts["env"] + parts["infer"] + parts["learn"]) / total if total else 0.0
    return {name: round(each, 3) for name, each in parts.items()} | {
        "rl-train": round(total, 3),
        "share": round(share, 4),
    }


def show(result: Mapping[str, Any], console: Console) -> None:
    """The result of `bench` as a table."""
    config, mean, best, cpu = result["configuration"], result["mean"], result["best"], result["cpu_us_per_step"]
    cores = result["machine"]["cores"]
    table = Table(
        title=f"{config['env']} with {config['agent']['core']}, {config['num_actors']} actor(s) of "
        f"{config['envs_per_actor']} environments, updates of {config['unroll_length']} x {config['envs_per_update']}",
        title_justify="left",
    )
    table.add_column("")
    for name in ("steps/s", "best", "CPU µs/step"):
        table.add_column(name, justify="right", no_wrap=True)

    def rates(name: str) -> tuple[str, str]:
        return f"{mean[name]:,.0f}", f"{best[name]:,.0f}"

    for name, label in _PARTS.items():
        if name in mean:
            table.add_row(label, *rates(name), f"{cpu[name]:,.2f}")
    table.add_section()
    for name, label in _IDEALS.items():
        if name in mean:
            table.add_row(label.format(cores), *rates(name))
    table.add_row("reached by rl-train", *rates("reached"), f"{cpu['rl-train']:,.2f}", style="bold")
    for name, label in _FRACTIONS.items():
        if name in mean:
            table.add_row(label, f"{mean[name]:.2f}", f"{best[name]:.2f}", style="bold")
    table.add_row("parts' share of the processor time", "", "", f"{cpu['share']:.2f}")
    console.print(table)
    console.print(_roofline(result["roofline"]))
    console.print(
        f"{result['machine']['processor']}, {cores} core(s); first update {result['seconds_to_first_update']:.1f} s "
        f"after the command; {_memory(result['training'][-1]['memory_mb'])}",
        highlight=False,
    )


def _roofline(found: Mapping[str, Any]) -> Table:
    """A table: rates of acting and learning as shares of a device's product and copy."""
    table = Table(title="Of the device's most", title_justify="left")
    table.add_column("")
    for name in ("GFLOP/s", "GB/s"):
        table.add_column(name, justify="right")
    for name, limits in found["roofs"].items():
        table.add_row(f"{name}, a large product, a large copy", *(f"{1e-9 * each:,.1f}" for each in limits.values()))
    for name, part in found["parts"].items():
        shares = (f"{1e-9 * part[of]:,.1f} ({part['of_' + of]:.0%})" for of in ("flops", "bandwidth"))
        table.add_row(f"{_PARTS[name].partition(',')[0]}, on {part['device']}", *shares)
    return table


def _memory(samples: Sequence[tuple[float, float]]) -> str:
    """First and last memory of the last run; the first quarter is its start."""
    later = [mb for _, mb in samples[len(samples) // 4 :]]
    return f"memory {later[0]:,.0f} to {later[-1]:,.0f} MB" if later and later[-1] else "memory unknown"
