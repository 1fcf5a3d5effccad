"""Pictures: their layout is recognized or asked for, and the networks of the papers have the papers' sizes."""

import pytest
import torch
from torch import nn

from engram.actors.factory import ActorFactory
from engram.agents.config import AgentConfig, TorsoConfig
from engram.agents.grid_torso import ConvTorso
from engram.agents.images import channels_first
from engram.agents.specs import ArraySpec
from engram.agents.torsos import make_torso
from engram.envs.registration import ENVIRONMENTS


@pytest.mark.parametrize(
    ("shape", "first"),
    [
        ((84, 84, 4), False),
        ((4, 84, 84), True),
        ((210, 160, 3), False),
        ((3, 210, 160), True),
        ((7, 7, 20), False),
        ((1, 28, 28), True),
        ((3, 3, 3), False),
        ((7, 12, 5), False),
    ],
)
def test_the_layout_of_a_picture_is_recognized(shape: tuple[int, ...], first: bool) -> None:
    assert channels_first(shape, "auto") is first
    assert channels_first(shape, "channels-first") is True
    assert channels_first(shape, "channels-last") is False


@pytest.mark.parametrize("shape", [(3, 5, 20), (64, 8, 8), (4, 12, 14)])
def test_a_layout_that_the_shape_does_not_show_is_asked_for(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\[rows, columns, channels\] or .* set --image-layout"):
        make_torso(ArraySpec(shape), TorsoConfig())
    make_torso(ArraySpec(shape), TorsoConfig(conv_channels=()))  # a plain vector has no layout


@pytest.mark.parametrize("torso", ["grid", "atari-resnet"])
def test_both_layouts_are_the_same_picture(torso: str) -> None:
    features: list[torch.Tensor] = []
    picture = torch.rand(2, 10, 10, 3)
    for layout, observation in (("channels-last", picture), ("channels-first", picture.permute(0, 3, 1, 2))):
        torch.manual_seed(0)
        config = TorsoConfig(torso=torso, image_layout=layout, normalize_observations=True)  # type: ignore[arg-type]
        net = make_torso(ArraySpec(tuple(observation.shape[1:])), config)
        net.observe(observation)  # type: ignore[operator]
        features.append(net(observation))
    assert torch.equal(*features)


@pytest.mark.parametrize(
    ("torso", "parameters", "size"),
    [
        # 4*32*64+32, 32*64*16+64, 64*64*9+64, and 64*7*7 -> 512 (Mnih et al. 2015).
        ("atari", 8224 + 32832 + 36928 + 3136 * 512 + 512, 512),
        # 4 -> 16, 16 -> 32, 32 -> 32, each with four convolutions more; 84 -> 42 -> 21 -> 11; 32*11*11 -> 256.
        ("atari-resnet", 592 + 4 * 2320 + 4640 + 4 * 9248 + 9248 + 4 * 9248 + 3872 * 256 + 256, 256),
    ],
)
def test_the_papers_networks_have_the_papers_sizes(torso: str, parameters: int, size: int) -> None:
    net = make_torso(ArraySpec((4, 84, 84), 1 / 255), TorsoConfig(torso=torso))  # type: ignore[arg-type]
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert net(torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)).shape == (3, size)


def test_a_residual_block_adds_to_what_it_is_given() -> None:
    net = make_torso(ArraySpec((12, 12, 3)), TorsoConfig(torso="atari-resnet"))
    block = net.layers[2]  # type: ignore[index]
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    x = torch.randn(2, 16, 6, 6)
    assert torch.equal(block(x), x)


def test_a_picture_too_small_for_strides_is_refused() -> None:
    with pytest.raises(ValueError, match=r"torso is 'atari'; allowed for images of at least 36 x 36, .* 35 x 84"):
        make_torso(ArraySpec((35, 84, 3)), TorsoConfig(torso="atari"))
    make_torso(ArraySpec((36, 36, 3)), TorsoConfig(torso="atari"))(torch.rand(1, 36, 36, 3))


def test_foveal_reads_the_center_by_cells_and_the_rest_by_blocks() -> None:
    torch.manual_seed(0)
    net = make_torso(ArraySpec((29, 37, 3), 1 / 255), TorsoConfig(torso="foveal"))
    observation = torch.randint(0, 256, (2, 29, 37, 3), dtype=torch.uint8)
    # plain: the crop; and means of blocks, after one column of zeros on each side and one row below
    x = observation.permute(0, 3, 1, 2) / 255
    blocks = torch.zeros(2, 3, 10, 13)
    for r in range(29):
        for c in range(37):
            blocks[:, :, r // 3, (c + 1) // 3] += x[:, :, r, c] / 9
    layers: nn.Module = net.layers  # type: ignore[assignment]
    near, far = layers.near(x[:, :, 9:20, 13:24]), layers.far(blocks)  # type: ignore[operator]
    expected = torch.relu(net.linear(torch.cat([near.flatten(1), far.flatten(1)], 1)))  # type: ignore[operator]
    torch.testing.assert_close(net(observation), expected)
    with pytest.raises(ValueError, match=r"torso is 'foveal'; allowed for images of at least 11 x 11, .* 10 x 37"):
        make_torso(ArraySpec((10, 37, 3)), TorsoConfig(torso="foveal"))


def test_environments_of_ours_need_no_layout() -> None:
    for name in ENVIRONMENTS:
        factory = ActorFactory(
            env=name, agent=AgentConfig(core="lstm", core_args={"hidden_size": 4}), num_envs=1, unroll_length=2, seed=0
        )
        agent = factory.make_agent(factory.make_batch())
        assert agent.config.torso.image_layout == "channels-last"
        assert not isinstance(agent.torso, ConvTorso) or agent.torso.first is False


@pytest.mark.parametrize("torso", ["atari", "atari-resnet"])
def test_gray_pictures_and_stacked_frames_are_read_as_pictures(torso: str) -> None:
    def features(picture: torch.Tensor, layout: str = "auto") -> torch.Tensor:
        torch.manual_seed(0)
        config = TorsoConfig(torso=torso, image_layout=layout, normalize_observations=True)  # type: ignore[arg-type]
        net = make_torso({"eye": ArraySpec(tuple(picture.shape[1:])), "body": ArraySpec((3,))}, config)
        net.observe({"eye": picture, "body": torch.zeros(len(picture), 3)})  # type: ignore[operator]
        return net({"eye": picture, "body": torch.zeros(len(picture), 3)})

    gray = torch.rand(2, 40, 44)
    assert torch.equal(features(gray), features(gray.unsqueeze(3)))
    frames = torch.rand(2, 4, 40, 44, 3)
    # channel f * 3 + c is channel c of frame f
    merged = torch.cat([frames[:, f] for f in range(4)], 3)
    assert torch.equal(features(frames), features(merged))
    assert torch.equal(features(frames.permute(0, 1, 4, 2, 3)), features(merged))


def test_a_torso_for_pictures_without_a_picture_is_refused() -> None:
    for spec, shown in (
        (ArraySpec((4,)), r"shape \[4\]"),
        (ArraySpec((2, 3, 40, 40, 3)), r"shape \[2, 3, 40, 40, 3\]"),
        ({"b": ArraySpec((4,)), "a": ArraySpec((2,))}, "entries a, b"),
    ):
        expected = f"torso is 'atari', and the observation of {shown} is not an image; allowed: torso 'grid'"
        with pytest.raises(ValueError, match=expected):
            make_torso(spec, TorsoConfig(torso="atari"))  # type: ignore[arg-type]
