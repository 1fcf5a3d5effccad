"""rl-check-core: one line per property, and an exit code that scripts can trust."""

import re

import pytest

from broken_cores import Toy
from engram.agents.certificate.certificate import CHECKS
from engram.launch.entry import rl_check_core as run

LINES = [name for name, _ in CHECKS]
SHORT = ["--long-run", "100"]


@pytest.fixture
def check(capsys, monkeypatch):
    """Runs the command: exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "60")  # a narrow terminal cuts no line

    def command(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            run(list(words))
        assert isinstance(stop.value.code, int)
        shown = capsys.readouterr()
        return stop.value.code, shown.out, shown.err

    return command


def verdicts(out: str) -> dict[str, str]:
    """The mark before each line's name."""
    return {name.strip(): word for word, name in re.findall(r"^  (pass|FAIL)  (.{32})", out, re.MULTILINE)}


def test_a_registered_core(check):
    code, out, err = check("gru", "--core-args", "hidden_size=12", "--input-size", "4", *SHORT)
    assert verdicts(out) == dict.fromkeys(LINES, "pass")
    assert out.startswith("gru: 648 parameters, 48 bytes of state per environment, 4 inputs -> 12 outputs\n")
    assert re.search(rf"^{len(LINES)} of {len(LINES)} passed in \d+ s$", out, re.MULTILINE)
    assert (code, err) == (0, "")


def test_a_core_of_a_third_party(check):
    """Named by module and class; its own option is set."""
    code, out, _ = check("broken_cores:Toy", "--core-args", "hidden_size=20", "--input-size", "6", *SHORT)
    parameters = sum(p.numel() for p in Toy(6, 20).parameters())
    assert out.startswith(f"broken_cores:Toy: {parameters} parameters, 80 bytes of state per environment, 6 inputs")
    assert verdicts(out) == dict.fromkeys(LINES, "pass")
    assert code == 0


def test_a_broken_core_fails_on_its_line_and_by_its_exit_code(check):
    code, out, _ = check("broken_cores:CutTooOften", "--input-size", "6", *SHORT)
    failed = {name for name, word in verdicts(out).items() if word == "FAIL"}
    assert failed == {"gradient cut at bptt_length"}
    assert re.search(r"FAIL  gradient cut at bptt_length +bptt_length 3: ", out)
    assert f"{len(LINES) - 1} of {len(LINES)} passed" in out
    assert code == 1


def test_a_network_without_memory_only_lacks_memory(check):
    code, out, _ = check("feedforward", "--core-args", "hidden_size=8", "--input-size", "4", *SHORT)
    assert {name for name, word in verdicts(out).items() if word == "FAIL"} == {"recalls a cue"}
    assert code == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lsmt"], "unknown core 'lsmt'; did you mean: lstm"),
        (["lstm", "--core-args", "hiden_size=3"], "core 'lstm' has no option 'hiden_size'; did you mean: hidden_size"),
        (["lstm", "--core-args", "hidden_size=0.5"], "hidden_size is 0.5; allowed: at least 1 (a whole number)"),
        (
            ["broken_cores:Toy", "--core-args", "hidden_size=0.5"],
            "cannot make core 'broken_cores:Toy': __init__ raised TypeError",
        ),
        (["broken_cores:Nobody"], "cannot load core 'broken_cores:Nobody'"),
        (["broken_cores:ToyState"], "'broken_cores:ToyState' is not a subclass of engram.agents.cores.core.Core"),
        (["lstm", "--input-size", "2"], "input_size is 2; allowed: at least 3"),
        (["lstm", "--long-runs", "5"], "--long-run"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(check, words, message):
    code, out, err = check(*words)
    assert code == 2
    assert message in " ".join((out + err).replace("│", " ").split())
    assert "Traceback" not in out + err
