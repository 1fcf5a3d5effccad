"""The cluster files: valid for the Ray that is pinned, the same on every node, and closed to the environment."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from engram.learners.remote.processes import RESOURCE

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "launch" / "cluster"
PINNED = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"
)
CLOUDS = ["aws", "gcp"]


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def node_types(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The head's node type, and the workers'."""
    types = config["available_node_types"]
    assert set(types) == {config["head_node_type"], "workers", "learners"}
    return types[config["head_node_type"]], types["workers"]


def everything(value: Any) -> list[Any]:
    """All leaves of a configuration."""
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in everything(each)]
    return [leaf for each in value for leaf in everything(each)] if isinstance(value, list) else [value]


def test_there_is_a_file_for_each_kind_of_cluster() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == ["aws", "gcp", "kuberay", "local"]


@pytest.mark.parametrize("name", ["local", *CLOUDS])
def test_ray_accepts_it(name: str) -> None:
    validate_config(prepare_config(load(name)))
    broken = copy.deepcopy(load(name))
    broken["max_worker"] = 3
    with pytest.raises(Exception, match="max_worker"):
        validate_config(prepare_config(broken))


@pytest.mark.parametrize("name", ["local", *CLOUDS])
def test_engram_is_installed_with_the_pinned_versions_and_the_token_comes_along(name: str) -> None:
    config = load(name)
    mounts = config["file_mounts"]
    assert mounts["~/engram"] == "."
    assert mounts["~/.ray/auth_token"] == "~/.ray/auth_token"
    for kind in ("head", "worker"):
        commands = [*config["setup_commands"], *config.get(f"{kind}_setup_commands", [])]
        assert sum('-c ~/engram/constraints.txt "$HOME/engram[cluster]"' in command for command in commands) == 1
        assert any("RAY_AUTH_MODE=token" in command for command in commands)
    assert {".git", "runs"} <= set(config["rsync_exclude"])


@pytest.mark.parametrize("name", ["local", *CLOUDS])
def test_the_dashboard_stays_at_home(name: str) -> None:
    (start,) = (command for command in load(name)["head_start_ray_commands"] if "ray start" in command)
    assert "--dashboard-host=127.0.0.1" in start
    assert not any("0.0.0.0" in str(leaf) or "::/0" in str(leaf) for leaf in everything(load(name)))


@pytest.mark.parametrize("name", CLOUDS)
def test_no_port_is_open_to_the_world(name: str) -> None:
    """Ssh goes through the cloud's own tunnel; what Ray would open by itself is replaced."""
    config = load(name)
    assert config["provider"]["use_internal_ips"] is True
    assert config["auth"]["ssh_proxy_use_node_id"] is True
    tunnel = {"aws": "aws ssm start-session", "gcp": "gcloud compute start-iap-tunnel"}[name]
    assert config["auth"]["ssh_proxy_command"].startswith(tunnel)
    for node in node_types(config):
        if name == "aws":  # without SecurityGroupIds Ray makes a group that lets everybody in at port 22
            assert node["node_config"]["SecurityGroupIds"]
        else:  # without accessConfigs there is no public address
            (interface,) = node["node_config"]["networkInterfaces"]
            assert set(interface) == {"subnetwork"}
    assert "security_group" not in config["provider"]


@pytest.mark.parametrize("name", CLOUDS)
def test_a_gpu_head_learns_and_bounded_spot_workers_act(name: str) -> None:
    config = load(name)
    head, workers = node_types(config)
    assert head["resources"] == {"CPU": 0, "GPU": 1}
    assert workers["resources"]["CPU"] > 0
    assert "GPU" not in workers["resources"]
    assert 0 < workers["min_workers"] <= workers["max_workers"] == config["max_workers"]
    assert config["idle_timeout_minutes"] > 0
    node = workers["node_config"]
    spot = (
        node["InstanceMarketOptions"]["MarketType"] == "spot" if name == "aws" else node["scheduling"][0]["preemptible"]
    )
    assert spot
    assert "InstanceMarketOptions" not in head["node_config"]


@pytest.mark.parametrize("name", CLOUDS)
def test_nodes_for_learners_are_workers_with_the_resource_that_learners_claim(name: str) -> None:
    config = load(name)
    _, workers = node_types(config)
    learners = config["available_node_types"]["learners"]
    assert learners["resources"] == workers["resources"] | {RESOURCE: 1}
    assert learners["node_config"] == workers["node_config"]
    assert learners["min_workers"] == learners["max_workers"] == 0, "started on request alone"
    for number in ("min_workers", "max_workers"):
        learners[number] = 3
    validate_config(prepare_config(config))


@pytest.mark.parametrize("name", CLOUDS)
def test_images_pin_ray_and_python(name: str) -> None:
    docker = load(name)["docker"]
    for image in (docker["head_image"], docker["worker_image"]):
        found = re.fullmatch(r"rayproject/ray:([\d.]+)-py(\d+)-[cg]pu", image)
        assert found
        assert found.groups() == (PINNED["ray"], "311")
    for node in node_types(load(name)):
        if name == "aws":
            assert node["node_config"]["ImageId"].startswith("ami-")
        else:
            assert "/family/" not in node["node_config"]["disks"][0]["initializeParams"]["sourceImage"]


def test_the_page_names_every_value_that_is_the_readers() -> None:
    page = (ROOT / "docs" / "tutorials" / "cluster.md").read_text()
    for name in CLOUDS:
        assert "# yours" in (FOLDER / f"{name}.yaml").read_text()
    for word in ("SecurityGroupIds", "ImageId", "IamInstanceProfile", "project_id", "subnetwork", "sourceImage"):
        assert word in page
