"""Steps and their names."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from ckptmgr import InvalidStep, NotAStep
from ckptmgr.format.step import (
    LARGEST_STEP,
    foreign,
    is_leftover,
    parse_step,
    step_name,
    step_number,
    temporary_name,
)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), jnp.int32(3), np.array(3)])
def test_whatever_is_an_index_is_a_step(value: object) -> None:
    """Also jax's and numpy's integers without dimensions."""
    assert parse_step(value) == 3


@pytest.mark.parametrize(
    "value", [True, np.bool_(1), jnp.bool_(1), 3.0, "3", None, np.ones(2, int)]
)
def test_what_is_no_integer_is_refused(value: object) -> None:
    """Bools too."""
    with pytest.raises(NotAStep, match="a step is an integer"):
        parse_step(value)


def test_a_tree_passed_as_step_is_a_type_error_that_names_like() -> None:
    """The mistake of `restore(state)`."""
    with pytest.raises(TypeError, match="like=tree"):
        parse_step({"params": 1})


@pytest.mark.parametrize("value", [-1, LARGEST_STEP + 1])
def test_negative_and_enormous_steps_are_refused(value: int) -> None:
    """With the range in the text."""
    with pytest.raises(InvalidStep, match="at least 0"):
        parse_step(value)


@pytest.mark.parametrize("step", [0, 7, 99_999_999, 100_000_000, LARGEST_STEP])
def test_a_name_gives_its_number_back(step: int) -> None:
    """Whatever its length."""
    assert step_number(step_name(step)) == step


@pytest.mark.parametrize(
    "name", ["step-1", "step-000000001", "7", "step-00000007.old", "tb_logs", f"step-{10**18 * 9}9"]
)
def test_other_names_are_no_steps(name: str) -> None:
    """Not even nearly right ones."""
    assert step_number(name) is None


def test_only_what_we_name_is_a_leftover() -> None:
    """Other people's dot files are left alone."""
    assert is_leftover(temporary_name(step_name(3), "tmp"))
    assert is_leftover(temporary_name(step_name(3), "trash"))
    assert not any(
        map(is_leftover, [".tmp", ".tmp-mine-0123456789abcdef", "step-00000003", ".lock"])
    )


def test_what_is_not_ours_in_a_step_is_told_apart() -> None:
    """By name alone."""
    ours = [
        "checkpoint.json", "tree.json", "arrays/zarr.json", "arrays/w/zarr.json", "arrays/w/c",
        "arrays/%2e/c.0.12", "packs/0/zarr.json", "packs/12/c.3",
    ]  # fmt: skip
    others = ["notes.txt", "arrays/x", "arrays/w/c.0.b", "arrays/w/x/c.0", "packs/a/c.0", "c.0"]
    assert foreign([*others, *ours]) == sorted(others)


def test_the_trash_of_what_was_set_aside_is_a_leftover() -> None:
    """It was deleted by hand, and that was cut short."""
    aside = temporary_name("step-00000003", "abandoned")
    assert not is_leftover(aside)
    assert is_leftover(temporary_name(aside, "trash"))
