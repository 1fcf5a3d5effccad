"""`rl-bench cores` measures what it says, and refuses what it cannot."""

import json

import pytest

from engram.launch.bench.cores import CoresConfig, main, paper_core
from engram.launch.run.command_line import UsageError

SHORT = ["--seconds", "0.01", "--batch-sizes", "2", "3", "--threads", "1", "--unroll-length", "3"]


def test_every_number_of_the_table_is_in_the_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")  # rich shortens numbers that do not fit
    path = tmp_path / "cores.json"
    assert main(["lstm", "mnm-p", "feedforward", *SHORT, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["cores"]["lstm"]["parameters"] == 4 * 256 * (650 + 256 + 2)
    assert [found["cores"][name]["state_bytes"] for name in ("lstm", "feedforward")] == [2 * 256 * 4, 0]
    assert found["cores"]["mnm-p"]["input_size"] == 11
    shown = capsys.readouterr().out.replace(",", "")
    for core in found["cores"].values():
        assert set(core["threads"]) == {"1"}
        assert set(core["threads"]["1"]) == {"2", "3"}
        for speed in core["threads"]["1"].values():
            rates = {"acting", "learning", "looped", "unrolling", "unrolling_looped"}
            assert set(speed) == rates | {"gains"}
            assert all(f"{speed[rate]:.0f}" in shown for rate in rates)
            gains = [speed["learning"] / speed["looped"], speed["unrolling"] / speed["unrolling_looped"]]
            assert speed["gains"] == pytest.approx(gains)
            assert all(f"{gain:.1f}" in shown for gain in gains)
    assert found["products"]["1"]["torch.mm"] > 0


def test_the_papers_options_are_those_of_the_presets():
    assert sum(p.numel() for p in paper_core("mnm-p")[0].parameters()) == 542_001
    assert sum(p.numel() for p in paper_core("rmc")[0].parameters()) == 499_204
    assert paper_core("lstm", 7)[1] == 7


def test_pools_are_unrolled_as_far_as_in_their_paper(tmp_path):
    path = tmp_path / "cores.json"
    words = ["concrete-small", "feedforward", *SHORT[:-2], "--json", str(path)]
    assert main(words) == 0
    found = json.loads(path.read_text())["cores"]
    assert {name: core["unroll_length"] for name, core in found.items()} == {"concrete-small": 300, "feedforward": 40}
    assert found["concrete-small"]["input_size"] == 8


def test_an_unknown_core_is_named():
    with pytest.raises(UsageError, match=r"unknown core 'lsmt'.*lstm"):
        main(["lsmt", *SHORT])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"threads": (0,)}, r"threads is \(0,\); allowed: numbers of at least 1"),
        ({"batch_sizes": ()}, "batch_sizes is"),
        ({"seconds": 0.0}, r"seconds is 0.0; allowed: above 0"),
        ({"unroll_length": -1}, "unroll_length is -1; allowed: at least 0"),
        ({"input_size": -1}, "input_size is -1; allowed: at least 0"),
    ],
)
def test_values_out_of_range_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        CoresConfig(**values)
