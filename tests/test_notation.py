"""Rules as text: read back as they are written, and never evaluated."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmgr import (
    At,
    Every,
    InvalidOption,
    KeepAll,
    KeepBest,
    KeepEvery,
    KeepLast,
    KeepSteps,
    KeepWithin,
    OnPreemption,
    OverheadBelow,
    Retention,
    WhenIdle,
)
from ckptmgr.notation import parse_cadence, parse_retention

COUNTS = st.integers(1, 10**9)
HOURS = st.floats(1e-6, 1e6)
RULES = st.one_of(
    st.just(KeepAll()),
    COUNTS.map(KeepLast),
    COUNTS.map(lambda n: KeepEvery(steps=n)),
    HOURS.map(lambda hours: KeepEvery(hours=hours)),
    HOURS.map(lambda hours: KeepWithin(hours=hours)),
    st.builds(KeepBest, st.text(), n=COUNTS, mode=st.sampled_from(["min", "max"])),
    st.sets(st.integers(0, 2**63 - 1), min_size=1).map(KeepSteps),
)


@given(st.lists(RULES, min_size=1, max_size=6))
def test_what_repr_says_of_a_rule_is_that_rule(rules: list[Retention]) -> None:
    """And of several joined by `|`."""
    joined = rules[0]
    for rule in rules[1:]:
        joined |= rule
    assert repr(parse_retention(repr(joined))) == repr(joined)


def test_rules_have_lines_and_comments() -> None:
    """Nothing after a comment is swallowed by it."""
    assert (
        repr(
            parse_retention("""
        KeepLast(3) # the newest
        | KeepEvery(steps=1000) # for ever
        | KeepWithin(hours=inf)
    """)
        )
        == "KeepLast(n=3) | KeepEvery(steps=1000) | KeepWithin(hours=inf)"
    )
    found = parse_cadence("Every(steps=100) # often\n| OnPreemption()")
    assert found == Every(100) | OnPreemption()


def test_cadences_are_read() -> None:
    """Every one, with whatever whitespace."""
    text = " Every( steps = 100 )|At([1, 2]) | WhenIdle() |OverheadBelow(0.01)\n| OnPreemption()"
    assert parse_cadence(text) == (
        Every(100) | At({1, 2}) | WhenIdle() | OverheadBelow(0.01) | OnPreemption()
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("KeepLast", "is no call of a rule"),
        ("3", "is no call of a rule"),
        ("KeepLast(3) & KeepAll()", "is no call of a rule"),
        ("KeepLast(3).keeps({})", "is no call of a rule"),
        ("retention.KeepLast(3)", "is no call of a rule"),
        ("[KeepLast(3)][0]", "is no call of a rule"),
        ("KeepLast(x)", "x is no number or text"),
        ("KeepLast(f'{1}')", "is no number or text"),
        ("KeepLast(*[3])", "is no number or text"),
        ("KeepLast(**{'n': 3})", "** is not understood"),
        ("KeepLast()", "missing 1 required positional argument: 'n'"),
        ("KeepLast(3, 4)", "takes 2 positional arguments but 3 were given"),
        ("KeepSteps(3)", "not iterable"),
        ("KeepSteps({-1})", "at least 0"),
        ("KeepSteps({'a'})", "a step is an integer"),
        ("KeepEvery(steps=2, hours=3)", "either steps= or hours="),
        ("KeepLast(3) | ", "invalid syntax"),
        ("KeepSteps({[1]})", "is no number or text"),
        (f"KeepEvery(hours=1{'0' * 400})", "cannot be read"),
        ("KeepLast(3); KeepAll()", "invalid syntax"),
        ("Every(steps=3)", "no rule is called Every; KeepEvery is"),
        ("KeepLast(3)" + " | KeepLast(3)" * 1000, "too long"),
        ("(" * 400 + ")" * 400, "nested"),
        ("KeepLast(" + "-" * 5000 + "3)", "cannot be read"),
        ("KeepLast(\0)", "null bytes"),
    ],
)
def test_what_is_no_rule_is_refused(text: str, words: str) -> None:
    """With what is wrong, and how one is written."""
    with pytest.raises(InvalidOption) as caught:
        parse_retention(text)
    assert words in str(caught.value)
    assert "KeepLast(3) | KeepEvery(steps=1000)" in str(caught.value)


@given(st.text())
def test_no_text_does_anything_else(text: str) -> None:
    """It is a rule, or an InvalidOption."""
    with contextlib.suppress(InvalidOption):
        parse_retention(text)
