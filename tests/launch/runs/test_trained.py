"""Settings that may not change within one run."""

from dataclasses import replace

from engram.launch.config.run_flags import preset
from engram.launch.runs.trained import fixed_differences


def test_a_range_that_a_file_gives_back_as_a_list_is_no_difference() -> None:
    asked = preset("curriculum", "boxworld", "rmc")
    curriculum = {
        name: [list(each) if isinstance(each, tuple) else each for each in values]
        for name, values in asked.levels.curriculum.items()
    }
    read = replace(asked, levels=replace(asked.levels, curriculum=curriculum))
    assert read != asked
    assert fixed_differences(read, asked) == []
    others = {**curriculum, "num_distractors": [0] * 9}
    changed = replace(asked, levels=replace(asked.levels, curriculum=others))
    assert [name for name, _, _ in fixed_differences(read, changed)] == ["levels.curriculum"]
