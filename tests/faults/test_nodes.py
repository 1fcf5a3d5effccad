"""Nodes that come and go: a lost one takes its actors and their unrolls along, an elastic pool follows the cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

import pools
from engram.actors.remote.pool import RayPool
from engram.launch.cluster import orphans
from pools import FACTORY, open_window, take, weights
from runs import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head without room for actors, which the tests add nodes to."""
    ray.cloudpickle.register_pickle_by_value(pools)
    monkeypatch.setenv("RAY_health_check_period_ms", "500")
    orphans.start_clean_up(tmp_path)
    found = Cluster(head_node_args={"num_cpus": 0, "object_store_memory": 1 << 28}, initialize_head=True)
    ray.init(address=found.address, log_to_driver=False, logging_level="ERROR")
    yield found
    ray.shutdown()
    found.shutdown()


def add_node(cluster: Cluster, num_cpus: int) -> object:
    node = cluster.add_node(num_cpus=num_cpus, object_store_memory=1 << 28)
    cluster.wait_for_nodes()
    return node


def test_a_lost_node_takes_only_its_own_unrolls_along(cluster: Cluster) -> None:
    staying, leaving = add_node(cluster, 1), add_node(cluster, 1)
    assert staying is not leaving
    reports: list[str] = []
    pool = RayPool(FACTORY.make_actor, 2, 5, window=open_window(), report=reports.append)
    pool.publish(weights(1))
    seen: set[bytes] = set()

    def consume(count: int) -> set[int]:
        """Actors that unrolls came from; none of these came before."""
        actors: set[int] = set()
        for _ in range(count):
            unroll = take(pool)
            content = bytes([unroll.actor]) + unroll.agent.logits.numpy().tobytes()
            assert content not in seen
            seen.add(content)
            actors.add(unroll.actor)
        return actors

    wait_for(lambda: consume(4) == {0, 1}, seconds=120)
    refs = list(pool._open)
    ray.wait(refs, num_returns=len(refs), timeout=60)  # unrolls that nobody has taken lie on both nodes
    cluster.remove_node(leaving, allow_graceful=False)
    wait_for(lambda: (consume(2), pool.failures >= 1)[1], seconds=120)
    assert len(consume(10)) == 1, "there is room for one"
    add_node(cluster, 1)
    wait_for(lambda: consume(4) == {0, 1}, seconds=120)
    pool.close()


def test_an_elastic_pool_grows_and_shrinks_with_the_cluster(cluster: Cluster) -> None:
    first = add_node(cluster, 1)
    pool = RayPool(FACTORY.make_actor, None, 5, window=open_window(), report=lambda _: None)
    pool.publish(weights(1))

    def grown_to(count: int) -> None:
        wait_for(lambda: (pool.next(), pool.num_actors == count)[1], seconds=120)

    grown_to(1)
    second = add_node(cluster, 2)
    grown_to(3)
    seen: set[int] = set()  # on a busy machine the third one may be long in answering
    wait_for(lambda: (seen.add(take(pool).actor), seen == {0, 1, 2})[1], seconds=120)
    cluster.remove_node(second, allow_graceful=False)
    grown_to(1)
    assert {take(pool).actor for _ in range(10)} < {0, 1, 2}
    cluster.remove_node(first, allow_graceful=False)
    grown_to(0)
    assert pool.next() is None
    add_node(cluster, 1)
    grown_to(1)
    take(pool)
    pool.close()
