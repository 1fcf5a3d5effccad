"""Random directed graphs, and disjoint train and test sets of graphs.

Samples are taken in the order of listing 1 of the FWM paper (Schlag, Munkhdalai, Schmidhuber 2021, appendix I) with
NumPy's legacy generator, so seed 666 gives the 600 + 600 graphs of the published experiments.
"""

from functools import lru_cache

import numpy as np

from ..arrays import Array


def sample_graph(random: np.random.RandomState, num_states: int, num_actions: int) -> tuple[Array, int]:
    """Sample a graph in which every state can be reached from every other; also return how many samples were rejected.

    Every state gets an outgoing, then an incoming edge, each with an unused (state, action) pair, never from a state to
    itself. So 2 * num_states pairs are valid, and two actions may share a destination. A graph is accepted if
    B^(2^num_states) has no zero for the 0/1 adjacency B of all actions; this also rejects periodic graphs.

    The graph is successors int8 [num_states, num_actions]: the successor under the action, -1 if it is invalid.
    """
    rejected = 0
    while True:
        successors = _sample(random, num_states, num_actions)
        if successors is not None and _mixes(successors):
            return successors, rejected
        rejected += 1


@lru_cache(maxsize=8)
def graph_sets(seed: int, count: int, num_states: int, num_actions: int) -> dict[str, Array]:
    """Return sets "test" and "train" of `count` graphs each, int8 [count, num_states, num_actions], read-only.

    The test graphs are sampled first; a train graph that equals a test graph is resampled. Raises ValueError if there
    are too few graphs of this size for disjoint sets.
    """
    random = np.random.RandomState(seed)
    test = [sample_graph(random, num_states, num_actions)[0] for _ in range(count)]
    test_keys = {graph.tobytes() for graph in test}
    train: list[Array] = []
    for _ in range(100 * count):
        graph, _ = sample_graph(random, num_states, num_actions)
        if graph.tobytes() not in test_keys:
            train.append(graph)
        if len(train) == count:
            break
    else:
        raise ValueError(
            f"num_graphs is {count}: too many for disjoint train and test sets of graphs with {num_states} states and "
            f"{num_actions} actions; lower num_graphs, or raise num_states or num_actions"
        )
    sets = {"train": np.stack(train), "test": np.stack(test)}
    for graphs in sets.values():
        graphs.flags.writeable = False
    return sets


def adjacency(successors: Array) -> Array:
    """uint8 [..., action, from, to] of successors int8 [..., from, action]."""
    num_states = successors.shape[-2]
    one_hot = successors[..., None] == np.arange(num_states)
    return np.moveaxis(one_hot, -2, -3).astype(np.uint8)


def _sample(random: np.random.RandomState, num_states: int, num_actions: int) -> Array | None:
    """Return one sample, connected or not; None if no pair remains for an incoming edge."""
    successors = np.full((num_states, num_actions), -1, np.int8)
    for start in range(num_states):
        others = [state for state in range(num_states) if state != start]
        end = others[random.randint(len(others))]
        successors[start, random.randint(num_actions)] = end
    for end in range(num_states):
        unused = [
            (start, action)
            for action in range(num_actions)
            for start in range(num_states)
            if successors[start, action] < 0 and start != end
        ]
        if not unused:
            return None
        successors[unused[random.randint(len(unused))]] = end
    return successors


def _mixes(successors: Array) -> bool:
    """Whether B^(2^num_states) is positive everywhere: the graph is strongly connected and aperiodic."""
    power = adjacency(successors).max(axis=0) > 0
    for _ in range(len(successors)):
        power = power @ power
    return bool(power.all())
