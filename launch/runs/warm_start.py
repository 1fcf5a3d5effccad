"""`--start-from RUN`: initialize a new run's networks from another run, such as one on easier levels."""

from collections.abc import Iterable

from ... import zoo
from ...agents.agent import Agent
from ...base.errors import refuse, user_errors
from .trained import is_card, open_run
from .trainees import best_member, take_weights


def start_from(run: str, agents: Iterable[Agent]) -> None:
    """Load the weights of the best member in a run's best checkpoint, or its newest one if none is best, into agents.

    Optimizers, counters and schedules are reset. Raises EngramError if there is no such run, or its network has other
    parameters.
    """
    refuse(not run, "--start-from is ''; allowed: a run directory, zoo:NAME, or the folder or URL of a card")
    with user_errors("" if run.startswith(zoo.PREFIX) or is_card(run) else "--start-from"):
        trained = open_run(run, "latest")
        if trained.best is not None:
            trained = open_run(run, "best")
    weights = trained.trainees[best_member(trained.trainees)].weights
    for agent in agents:
        take_weights(agent, weights, trained.checkpoint)
