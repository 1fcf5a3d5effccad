"""`--track mlflow`: the rows of metrics.jsonl and the configuration are in MLflow's store."""

import sys
from pathlib import Path

import pytest

from engram.base.errors import EngramError
from engram.launch.train import command
from runs import TINY, rows


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tracking store of files."""
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'store'}")
    return tmp_path / "store"


def test_mlflow_has_the_metrics_and_parameters_and_a_resumed_run_continues(store: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [*TINY, "--local", "--total-steps", "60", "--video-every", "30", "--run-dir", str(run)]
    assert command.main([*words, "--track", "mlflow"]) == 0
    assert command.main(["--resume", str(run), "--total-steps", "90"]) == 0
    (found,) = (folder.parent for folder in store.glob("*/*/params"))
    assert "name: engram\n" in (found.parent / "meta.yaml").read_text()
    metrics = sorted(
        (int(step), str(file.relative_to(found / "metrics")), float(value))
        for file in (found / "metrics").rglob("*")
        if file.is_file()
        for _, value, step in (line.split() for line in file.read_text().splitlines())
    )
    written = [(row["step"], name, x) for row in rows(run) for name, x in row["metrics"].items() if x is not None]
    assert metrics == sorted(written)
    parameters = {file.name: file.read_text() for file in (found / "params").iterdir()}
    assert [parameters[name] for name in ("env", "total_steps", "env_args.max_steps")] == ["boxworld", "60", "12"]
    videos = (found / "artifacts" / "eval" / "video").glob("*.gif")
    assert [file.read_bytes()[:4] for file in videos] == [b"GIF8"] * 3


def test_without_the_package_the_flag_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(EngramError, match=r"track is 'mlflow', which needs a package: pip install 'mlflow-skinny'"):
        command.main([*TINY, "--local", "--track", "mlflow", "--run-dir", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()
