"""Units in values."""

import pytest

from engram.base.units import Minutes, Seconds, count, duration, in_words, number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("20k", 20_000),
        ("1.5M", 1_500_000),
        ("2B", 2 * 10**9),
        ("2e6", 2 * 10**6),
        ("1_000", 1000),
        ("-3", -3),
        ("123456700", 123_456_700),
    ],
)
def test_counts(text: str, value: int) -> None:
    assert count(text) == value
    assert type(count(text)) is int
    assert count(in_words(value)) == value


@pytest.mark.parametrize("text", ["10m", "1.5", "k", "20 kk", "nan", "1e400", "1.0005k", "", "x"])
def test_texts_that_are_no_counts(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number; also allowed: 20k"):
        count(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("10 min", 600), ("2h", 7200), ("1.5d", 129_600), ("0.5s", 0.5)]
)
def test_durations_mean_the_same_whatever_the_unit_of_the_setting(text: str, seconds: float) -> None:
    assert duration(text, Seconds) == seconds
    assert duration(text, Minutes) == pytest.approx(seconds / 60, abs=0)


@pytest.mark.parametrize(("kind", "said"), [(Seconds, "seconds"), (Minutes, "minutes")])
def test_a_plain_number_has_the_unit_of_the_setting(kind: type, said: str) -> None:
    assert duration("3", kind) == duration("3e0", kind) == 3
    assert duration(in_words(2.5, kind), kind) == 2.5
    for text in ("10x", "inf", "20k", "m", ""):
        with pytest.raises(ValueError, match=f"is not a duration; allowed: 90s, 10m, 2h, 1d, or a number of {said}"):
            duration(text, kind)


def test_values_are_written_with_their_unit() -> None:
    assert [in_words(x) for x in (30_000, 1_000_000_000, 1_500_000, 1024, 128, 0, True, 0.5)] == [
        *("30k", "1B", "1.5M", "1024", "128", "0", "True", "0.5")
    ]
    assert [in_words(60.0, Seconds), in_words(2.5, Minutes), in_words(0.0, Minutes)] == ["60s", "2.5m", "0"]


def test_numbers_are_finite() -> None:
    assert number("1e-3") == 0.001
    for text in ("nan", "inf", "3s"):
        with pytest.raises(ValueError, match="is not a number"):
            number(text)
