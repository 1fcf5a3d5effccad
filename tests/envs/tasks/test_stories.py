"""bAbI and texts: what is read, asked and counted; the published counts where the user has the files."""

import os

import numpy as np
import pytest

from engram.envs.tasks.registry import make_task
from engram.envs.tasks.stories import CatBabi, read_stories, stories_of
from engram.envs.tasks.text import read_parts
from stories import LIST, STORY, write_babi

PUBLISHED = {"train": (56_376, 179_909), "valid": (6_245, 19_907), "test": (6_247, 19_910)}
"""Stories and questions of catbAbI (Schlag et al. 2021, appendix D)."""


@pytest.fixture
def folder(tmp_path):
    write_babi(tmp_path / "babi")
    return str(tmp_path / "babi")


def words(task, numbers):
    return [task.vocabulary[number] for number in numbers]


def test_stories_are_read_without_numbers_and_facts():
    first, second = read_stories(STORY + LIST)
    assert [line.words for line in first][:3] == [
        ["ada", "went", "to", "the", "shed", "."],
        ["ben", "took", "the", "lamp", "."],
        ["where", "is", "ada", "?"],
    ]
    assert [line.answer for line in first] == [None, None, "shed", None, "mill"]
    assert second[-1].answer == "cup,key"


def test_the_last_story_of_a_file_can_be_left_out_as_published(folder):
    assert len(stories_of(folder, "train", keep_last=True)) == 60
    assert len(stories_of(folder, "train", keep_last=False)) == 40
    assert [len(story) for story in read_stories(STORY, keep_last=False)] == []


def test_a_line_that_is_not_babi_is_named():
    with pytest.raises(ValueError, match="not a line of bAbI: 'Call me Ishmael"):
        list(read_stories("Call me Ishmael."))


@pytest.mark.parametrize("mode", ["qa", "lm"])
def test_answers_follow_question_marks_in_catbabi(folder, mode):
    task = make_task(f"catbabi-{mode}", 2, {"folder": folder, "chunk": 400}, part="test")
    batch = task.next()
    shown = batch.inputs[:, 0]
    read = shown[shown >= 0]
    assert words(task, read[:8]) == ["<eos>", "ada", "went", "to", "the", "shed", ".", "ben"]
    assert "cup,key" in words(task, batch.inputs[:, 1][batch.inputs[:, 1] >= 0]) or "cup,key" in words(task, read)
    marks = shown == task.vocabulary.index("?")
    assert np.array_equal(batch.scored[:, 0], marks)
    for t in np.flatnonzero(marks):
        assert words(task, [batch.targets[t, 0, 0]])[0] in ("shed", "mill", "cup,key")
        assert shown[t + 1] == batch.targets[t, 0, 0]  # the answer is shown after it was asked for
    if mode == "qa":
        assert ((batch.targets[:, 0, 0] >= 0) == marks).all()
    else:
        inside = shown >= 0
        assert ((batch.targets[:, 0, 0] >= 0) == inside).all()
        stays = np.flatnonzero(inside[1:] & (shown[1:] != 1))  # a new story begins with <eos>, which was its target
        assert np.array_equal(batch.targets[stays, 0, 0], shown[stays + 1])
    assert not batch.reset.any()


def test_a_part_is_read_once_and_whole(folder):
    task = make_task("catbabi-qa", 3, {"folder": folder, "chunk": 50}, part="valid")
    questions = 0
    for _ in range(task.batches):
        questions += int(task.next().scored.sum())
    assert questions == 2 * (19 * 2 + 1)
    assert not task.next().scored.any()


def test_training_goes_through_all_stories_in_a_new_order_each_pass(folder):
    task = make_task("catbabi-qa", 1, {"folder": folder, "chunk": 1}, seed=4)
    passes = []
    for _ in range(2):
        seen = 0
        order = task._order(0).tolist()
        while task._order(0).tolist() == order:
            task.next()
            seen += 1
        assert sorted(order) == list(range(40))
        assert seen == sum(len(document.tokens) for document in task.documents)
        passes.append(order)
    assert passes[0] != passes[1]


def test_babi_asks_after_the_story_without_earlier_questions(folder):
    task = make_task("babi", 1, {"folder": folder, "tasks": [8], "chunk": 40}, part="test")
    batch = task.next()
    shown = words(task, batch.inputs[:, 0][batch.inputs[:, 0] >= 0])
    assert shown[9:17] == ["key", ".", "what", "is", "cid", "carrying", "?", "<answer>"]
    asked = np.flatnonzero(batch.targets[:, 0, 0] >= 0)
    assert words(task, batch.targets[asked[:2], 0, 0]) == ["cup", "key"]
    assert batch.reset[0, 0]
    assert batch.reset[:, 0].sum() >= 2
    other = make_task("babi", 1, {"folder": folder, "tasks": 1, "chunk": 40}, part="test")
    second = [words(other, document.tokens) for document in other.documents][1]
    assert second.count("?") == 1
    assert second[-2:] == ["?", "<answer>"]
    assert second.count("ada") == 3


def test_missing_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="does not exist; expected bAbI's"):
        make_task("babi", 1, {"folder": str(tmp_path / "none")})
    with pytest.raises(ValueError, match=r"has 0 files qa1_\*train.txt, not 1"):
        make_task("babi", 1, {"folder": str(tmp_path)})


@pytest.mark.skipif("ENGRAM_BABI" not in os.environ, reason="ENGRAM_BABI names no folder of bAbI's en-valid-10k")
@pytest.mark.parametrize("part", PUBLISHED)
def test_counts_are_the_published_ones(part):
    folder = os.environ["ENGRAM_BABI"]
    stories = stories_of(folder, part, keep_last=False)
    questions = sum(line.answer is not None for story in stories for line in story)
    assert (len(stories), questions) == PUBLISHED[part]
    assert len(CatBabi(1, folder=folder, part="test").vocabulary) == 200


@pytest.mark.parametrize("level", ["word", "character"])
def test_texts_predict_the_next_token(tmp_path, level):
    (tmp_path / "text").write_text("the cat sat on the mat\n" * 200)
    task = make_task(f"text-{level}", 4, {"path": str(tmp_path / "text"), "chunk": 30})
    first, second = task.next(), task.next()
    inputs = np.concatenate([first.inputs, second.inputs])
    targets = np.concatenate([first.targets, second.targets])[:, :, 0]
    assert np.array_equal(inputs[1:], targets[:-1])
    shown = words(task, inputs[:7, 0])
    assert shown == (["the", "cat", "sat", "on", "the", "mat", "<eos>"] if level == "word" else list("the cat"))
    test = make_task(f"text-{level}", 4, {"path": str(tmp_path / "text"), "chunk": 30}, part="test")
    read = sum(int((test.next().targets >= 0).sum()) for _ in range(test.batches))
    assert read == 4 * len(test.documents[0].tokens)
    assert not (test.next().targets >= 0).any()


def test_a_file_is_divided_and_a_folder_is_not(tmp_path):
    (tmp_path / "one").write_text("".join(str(k % 10) for k in range(1000)))
    parts = read_parts(tmp_path / "one")
    assert [len(text) for text in parts.values()] == [900, 50, 50]
    assert "".join(parts.values()) == (tmp_path / "one").read_text()
    folder = tmp_path / "three"
    folder.mkdir()
    for part in ("train", "valid", "test"):
        (folder / f"wiki.{part}.tokens").write_text(part)
    assert read_parts(folder) == {"train": "train", "valid": "valid", "test": "test"}
    (folder / "wiki.test.tokens").unlink()
    with pytest.raises(ValueError, match="has 0 files with 'test' in their name, not 1"):
        read_parts(folder)


def test_unseen_words_are_unknown(tmp_path):
    (tmp_path / "t").write_text("a b " * 100 + "c d " * 6)
    task = make_task("text-word", 1, {"path": str(tmp_path / "t")}, part="test")
    assert task.vocabulary == ("<unk>", "a", "b")
    assert set(task.documents[0].tokens) == {0}


def test_a_text_too_short_for_the_test_batch_is_tested_in_fewer_sequences(tmp_path):
    (tmp_path / "t").write_text("ab" * 100)  # 10 characters each for validation and test
    test = make_task("text-character", 128, {"path": str(tmp_path / "t")}, part="test")
    assert (test.num_sequences, int((test.next().targets >= 0).sum())) == (9, 9)
    with pytest.raises(ValueError, match="has 180 characters for train; allowed: more than batch_size, which is 180"):
        make_task("text-character", 180, {"path": str(tmp_path / "t")})
    (tmp_path / "t").write_text("ab" * 10)
    with pytest.raises(ValueError, match="has 1 characters for valid; allowed: at least 2"):
        make_task("text-character", 128, {"path": str(tmp_path / "t")}, part="valid")


@pytest.mark.parametrize(("task", "name"), [("text-word", "path"), ("catbabi-qa", "folder"), ("babi", "folder")])
def test_files_that_are_a_number_are_refused_by_their_parameters_name(task, name):
    with pytest.raises(ValueError, match=f"{name} is 5; allowed: the name of a file or folder"):
        make_task(task, 1, {name: 5})
