"""A sweep with Optuna over `engram.train`, with a sampler that learns from earlier trials and pruning of poor ones.

    pip install "engram-rl[sweeps]"
    python examples/optuna_sweep.py --env t-maze --core gru --trials 20 --total-steps 300000

Every trial is a run directory in `--folder`. A trial whose return is below the median of the others at the same step
ends early.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna

import engram

METRIC = "episode/return"


def sweep(
    env: str, core: str, folder: Path, *, trials: int, total_steps: int, seed: int = 1, **settings: Any
) -> optuna.Study:
    """Search for a learning rate and an entropy cost.

    Args:
        env, core: as for `engram.train`.
        folder: folder for the run directories.
        trials: number of runs.
        total_steps: environment steps of every run.
        seed: seed of the sampler; trial k trains with seed + k.
        settings: settings of every run, as for `engram.train`.

    Returns:
        The study: `best_params`, `best_value`, and every trial with its state.
    """

    def objective(trial: optuna.Trial) -> float:
        learner = {
            "lr": trial.suggest_float("lr", 1e-4, 1e-2, log=True),
            "entropy_cost": trial.suggest_float("entropy_cost", 1e-4, 3e-2, log=True),
        }

        tenths = 0

        def poor(row: dict[str, float]) -> bool:
            """Report the return after every tenth of the steps; return True to end the run."""
            nonlocal tenths
            value, before, tenths = row.get(METRIC, math.nan), tenths, int(10 * row["step"] / total_steps)
            if math.isnan(value) or tenths == before:
                return False
            trial.report(value, tenths)
            return trial.should_prune()

        run = engram.train(
            env,
            core,
            run_dir=folder / f"trial-{trial.number:03}",
            seed=seed + trial.number,
            total_steps=total_steps,
            show=False,
            on_row=poor,
            **learner,
            **settings,
        )
        if run.reason != "done":
            raise optuna.TrialPruned
        returns = run.metrics.get(METRIC, np.array([np.nan]))
        return float(np.nanmean(returns[-len(returns) // 10 :]))

    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
    )
    study.optimize(objective, n_trials=trials)
    return study


def main() -> None:
    """Run a sweep with the arguments of the command line and print the trials, best first."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--env", default="t-maze")
    parser.add_argument("--core", default="gru")
    parser.add_argument("--folder", type=Path, default=Path("runs/optuna"))
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--total-steps", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    study = sweep(args.env, args.core, args.folder, trials=args.trials, seed=args.seed, total_steps=args.total_steps)
    done = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    for trial in sorted(done, key=lambda trial: -(trial.value or 0.0)):
        print(
            f"trial {trial.number}: {trial.value:.4g}", {name: f"{value:.3g}" for name, value in trial.params.items()}
        )
    print(f"{len(study.trials) - len(done)} trials were pruned or failed")


if __name__ == "__main__":
    main()
