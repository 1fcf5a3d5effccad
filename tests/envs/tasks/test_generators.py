"""Generated tasks against slow definitions: what is asked is worked out again from what is shown."""

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from engram.envs.tasks import recall
from engram.envs.tasks.symbols import END, END_OF_SUPPORT, NEXT_EXAMPLE, OPERATIONS, PLACEHOLDER, VOCABULARY
from engram.envs.tasks.task import make_task

MANY = 300


def asked(batch, i):
    """(step, classes) of every question of sequence i."""
    return [(t, batch.targets[t, i].tolist()) for t in range(len(batch.targets)) if batch.targets[t, i].max() >= 0]


def test_nth_farthest():
    batch = make_task("nth-farthest", MANY, seed=1).next()
    assert batch.inputs.shape == (8, MANY, 16 + 8 + 8 + 8)
    seen = []
    for i in range(MANY):
        vectors, labels, reference, n = np.split(batch.inputs[:, i].astype(float), [16, 24, 32], axis=1)
        assert np.abs(vectors).max() < 1
        labels = labels.argmax(1)
        assert sorted(labels) == list(range(8))
        m, rank = set(reference.argmax(1)), set(n.argmax(1))
        assert len(m) == len(rank) == 1
        center = vectors[list(labels).index(m.pop())]
        order = sorted(range(8), key=lambda k: -np.linalg.norm(vectors[k] - center))
        wanted = rank.pop()
        assert asked(batch, i) == [(7, [labels[order[wanted]]])]
        seen.append((wanted, labels[order[wanted]]))
    assert set(Counter(rank for rank, _ in seen)) == set(Counter(label for _, label in seen)) == set(range(8))


@pytest.mark.parametrize(("name", "steps"), [("copy", 11), ("reverse", 11), ("double", 16)])
def test_digits_again(name, steps):
    batch = make_task(name, MANY).next()
    assert batch.inputs.shape == (steps, MANY)
    lengths = Counter()
    for i in range(MANY):
        shown = batch.inputs[:6, i].tolist()
        length = shown.index(10)
        digits = shown[:length]
        lengths[length] += 1
        assert shown[length:] == [10] * (6 - length)
        assert digits[0] != 0
        wanted = {"copy": digits, "reverse": digits[::-1], "double": digits * 2}[name]
        assert asked(batch, i) == [(6 + k, [digit]) for k, digit in enumerate(wanted)]
        assert (batch.inputs[6:, i] == -1).all()
    assert min(lengths[length] for length in range(1, 6)) > MANY / 10


def test_double_copy_has_fifty_symbols():
    batch = make_task("double-copy", 200).next()
    assert (batch.inputs[50] == 10).all()
    assert np.array_equal(batch.targets[51:101, :, 0], batch.inputs[:50])
    assert np.array_equal(batch.targets[101:151, :, 0], batch.inputs[:50])
    assert (batch.inputs[0] == 0).any()  # not a number: any symbol may be first


def value_of(code):
    """A program's value by rewriting its innermost parentheses."""
    while "(" in code:
        code = re.sub(r"\(([^()]*)\)", lambda found: str(value_of(found[1])), code)
    number = r"(-?\d+)"
    if found := re.fullmatch(rf"x={number}for\[(\d)\]x\+={number}", code):
        x, times, step = map(int, found.groups())
        for _ in range(times):
            x += step
        return x
    if found := re.fullmatch(rf"{number}if{number}([<>]){number}else{number}", code):
        first, left, compare, right, other = found.groups()
        holds = int(left) < int(right) if compare == "<" else int(left) > int(right)
        return int(first if holds else other)
    if found := re.fullmatch(rf"{number}([-+*]){number}", code):
        a, operation, b = found.groups()
        return {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operation](int(a), int(b))
    return int(code)


@pytest.mark.parametrize("mix", [True, False])
@pytest.mark.parametrize("name", ["addition", "control", "program"])
def test_programs_evaluate_to_what_is_asked(name, mix):
    task = make_task(name, MANY, {"mix": mix})
    assert (task.steps_in, task.steps) == (57, 67)
    batch = task.next()
    depths, operations = Counter(), set()
    for i in range(MANY):
        code = "".join(VOCABULARY[number] for number in batch.inputs[:57, i]).rstrip(".")
        literals = re.findall(r"\d+", re.sub(r"\[\d\]", "", code))
        assert len({len(literal) for literal in literals}) == 1
        answer = str(value_of(code) % 10 ** (len(literals[0]) + 1))
        assert asked(batch, i) == [(57 + k, [int(digit)]) for k, digit in enumerate(answer)]
        depths[len(literals[0]), code.count("(")] += 1
        operations |= {word for word in OPERATIONS["program"] if word in code.replace("+=", "")}
    assert operations == set(OPERATIONS[name])
    assert set(depths) == ({(length, depth) for length in range(1, 6) for depth in (0, 1)} if mix else {(5, 1)})


def test_the_vocabulary_has_the_published_size():
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 45


@pytest.mark.parametrize(("pairs", "length", "steps"), [(4, 1, 15), (8, 4, 81), (12, 8, 221), (16, 12, 425)])
def test_dictionary(pairs, length, steps):
    batch = make_task(f"dictionary-{pairs}-{length}", 60).next()
    assert len(batch.inputs) == steps
    for i in range(60):
        row = batch.inputs[:, i].tolist()
        code, words = {}, []
        for pair in range(pairs):
            example, row = row[: 2 * length + 1], row[2 * length + 1 :]
            assert example.pop() == (END_OF_SUPPORT if pair == pairs - 1 else NEXT_EXAMPLE)
            words.append(example[:length])
            for source, target in zip(example[:length], example[length:], strict=True):
                assert code.setdefault(source, target) == target
        assert len(set(code.values())) == len(code) <= 13
        assert not set(code) & set(code.values())
        query = row[:length]
        assert (query in words) == (length == 1)
        assert row[length:] == [END] + [PLACEHOLDER] * length
        assert [classes for _, classes in asked(batch, i)] == [[code[letter]] for letter in query]
        assert asked(batch, i)[0][0] == steps - length


def test_a_dictionarys_query_is_a_new_word():
    """With two words of two letters a query drawn without a look at them would often be one of them."""
    batch = make_task("dictionary-8-4", MANY, {"num_pairs": 2, "length": 2}).next()
    for i in range(MANY):
        row = batch.inputs[:, i].tolist()
        assert row[10:12] not in (row[0:2], row[5:7])


def test_priority_sort():
    batch = make_task("priority-sort", 40).next()
    assert batch.inputs.shape == (36, 40, 10)
    for i in range(40):
        bits, priority = batch.inputs[:20, i, :8], batch.inputs[:20, i, 8]
        assert set(np.unique(bits)) == {0, 1}
        assert np.abs(priority).max() < 1
        wanted = bits[np.argsort(-priority)][:16].astype(int)
        assert [classes for _, classes in asked(batch, i)] == wanted.tolist()
        assert batch.inputs[:, i, 9].tolist() == [0] * 20 + [1] * 16


def read_order(shown, markers):
    """The class that a whole sequence stands for, and the steps of its markers."""
    at = [t for t, symbol in enumerate(shown) if symbol in (6, 7)]
    assert len(at) == markers
    return int("".join(str(shown[t] - 6) for t in at), 2), at


@pytest.mark.parametrize("markers", [2, 3])
def test_temporal_order(markers):
    name = "temporal-order" if markers == 2 else "temporal-order-3"
    task = make_task(name, 20, {"chunk": 37, "resets": True})
    batches = [task.next() for _ in range(30)]
    inputs, targets, resets = (np.concatenate([batch[k] for batch in batches]) for k in range(3))
    lengths, classes = set(), set()
    for i in range(20):
        starts = [t for t in range(len(inputs)) if inputs[t, i] == 0]
        assert starts == [t for t in range(len(inputs)) if resets[t, i]]
        for begin, end in pairwise(starts):
            shown = inputs[begin:end, i].tolist()
            assert shown[-1] == 1
            assert set(shown[1:-1]) <= {2, 3, 4, 5, 6, 7}
            answer, at = read_order(shown, markers)
            windows = recall.WINDOWS[markers]
            assert all(low <= t <= high for t, (low, high) in zip(at, windows, strict=True))
            assert targets[begin:end, i, 0].tolist() == [-1] * (len(shown) - 1) + [answer]
            lengths.add(len(shown))
            classes.add(answer)
    assert lengths == set(range(100, 111))
    assert classes == set(range(2**markers))


def test_slow_markers_are_patterns_of_distractors():
    patterns = recall.slow_patterns()
    assert len({tuple(word) for value in patterns for word in value.tolist()}) == 10
    batch = make_task("temporal-order-slow", 30, {"chunk": 900}).next()
    lengths = set()
    for i in range(30):
        row = batch.inputs[:, i].tolist()
        ends = [t for t, _ in asked(batch, i)]
        for begin, end in zip([0, *(t + 1 for t in ends)], ends, strict=False):
            shown = row[begin : end + 1]
            assert shown[:4] == [0] * 4
            assert shown[-4:] == [1] * 4
            assert set(shown[4:-4]) <= {2, 3, 4, 5}
            found = [
                (t, value)
                for t in range(len(shown) - 8)
                for value in (0, 1)
                if shown[t : t + 8] in patterns[value].tolist() and (10 <= t <= 20 or 50 <= t <= 60)
            ]
            assert 2 * found[0][1] + found[-1][1] == batch.targets[end, i, 0]
            lengths.add(len(shown))
    assert 98 <= min(lengths) <= 105
    assert 126 <= max(lengths) <= 133


@pytest.mark.parametrize("twin", [False, True])
def test_recall(twin):
    batch = make_task("recall", MANY, {"delay": [2, 9], "twin": twin}).next()
    delays = set()
    for i in range(MANY):
        ((when, (answer,)),) = asked(batch, i)
        shown = batch.inputs[:, i]
        assert shown[0].tolist() == [float(k == answer) for k in range(13)]
        assert (shown[1:when, 8:12].sum(1) == 1).all()
        assert not shown[1:when, :8].any()
        assert shown[when, 12] == 1
        assert shown[when, :8].tolist() == [float(twin and k == answer) for k in range(8)]
        assert not shown[when + 1 :].any()
        delays.add(when - 1)
    assert delays == set(range(2, 10))


def test_noise_has_the_deviation_that_is_asked_for():
    clean = make_task("noise", MANY, {"noise": 0}).next()
    noisy = make_task("noise", MANY, {"noise": 0.5}).next()
    assert set(np.unique(clean.inputs)) == {0, 1}
    assert np.std(noisy.inputs[1:11, :, :8]) == pytest.approx(0.5, rel=0.03)  # cues' features, zero but for noise


@pytest.mark.parametrize("twin", [False, True])
def test_pairs_ask_for_the_newest_value(twin):
    batch = make_task("overwriting", MANY, {"twin": twin}).next()
    writes, changed = set(), 0
    for i in range(MANY):
        held, shown = {}, batch.inputs[:, i]
        questions = asked(batch, i)
        for t in range(questions[0][0]):
            value = int(shown[t, 16:24].argmax())
            changed += held.get(shown[t, :16].tobytes(), value) != value
            held[shown[t, :16].tobytes()] = value
            assert shown[t, 16:24].sum() == 1
            assert np.linalg.norm(shown[t, :16]) == pytest.approx(1, abs=1e-5)
        assert len(held) == 4
        writes.add(questions[0][0] - 4)
        assert len(questions) == 4
        for t, (value,) in questions:
            assert held[shown[t, :16].tobytes()] == value
            assert shown[t, 24] == 1
            assert shown[t, 16:24].tolist() == [float(twin and k == value) for k in range(8)]
    assert writes == set(range(17))
    assert changed > 0.8 * MANY * 8 * 7 / 8  # 8 writes on average, one in eight of them the same value again


@pytest.mark.parametrize("similarity", [0.0, 0.6, 0.9])
def test_keys_are_as_alike_as_they_shall_be(similarity):
    batch = make_task("interference", MANY, {"similarity": similarity}).next()
    keys = batch.inputs[:4, :, :16]
    cosines = [np.mean(np.sum(keys[a] * keys[b], -1)) for a in range(4) for b in range(a)]
    assert np.mean(cosines) == pytest.approx(similarity, abs=0.04)
