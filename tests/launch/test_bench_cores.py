"""`rl-bench cores` measures what it says, and refuses what it cannot."""

import json

import pytest

from engram.launch.bench_cores import CoresConfig, main, paper_core
from engram.launch.command_line import UsageError

SHORT = ["--seconds", "0.01", "--batch-sizes", "2", "3", "--threads", "1", "--unroll-length", "3"]


def test_every_number_of_the_table_is_in_the_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # rich shortens numbers that do not fit
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
            assert set(speed) == {"acting", "learning", "looped"}
            assert all(f"{rate:.0f}" in shown for rate in speed.values())
            assert f"{speed['learning'] / speed['looped']:.1f}" in shown
    assert found["products"]["1"]["torch.mm"] > 0


def test_the_papers_options_are_those_of_the_presets():
    assert sum(p.numel() for p in paper_core("mnm-p")[0].parameters()) == 542_001
    assert sum(p.numel() for p in paper_core("rmc")[0].parameters()) == 499_204
    assert paper_core("lstm", 7)[1] == 7


def test_an_unknown_core_is_named():
    with pytest.raises(UsageError, match=r"unknown core 'lsmt'.*lstm"):
        main(["lsmt", *SHORT])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"threads": (0,)}, r"threads is \(0,\); allowed: numbers of at least 1"),
        ({"batch_sizes": ()}, "batch_sizes is"),
        ({"seconds": 0.0}, r"seconds is 0.0; allowed: above 0"),
        ({"unroll_length": 0}, "unroll_length is 0; allowed: at least 1"),
        ({"input_size": -1}, "input_size is -1; allowed: at least 0"),
    ],
)
def test_values_out_of_range_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        CoresConfig(**values)
