"""What fails in one process fails in all: nothing half is committed, and the next save works."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import ckptmgr
from ckptmgr import CheckpointManager
from tests.multiprocess.launch import launch


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What four processes hear of all that they can get wrong between them."""
    return launch("refusals", 4, tmp_path_factory.mktemp("refused") / "run", devices=1)


@pytest.mark.parametrize(
    ("case", "error", "leaf"),
    [
        ("a value differs", "ProcessesDiffer", "a"),
        ("numpy contents differ", "ProcessesDiffer", "a"),
        ("a leaf is missing", "ProcessesDiffer", "b"),
        ("a shape differs", "ProcessesDiffer", "a"),
        ("containers differ", "ProcessesDiffer", None),
        ("a host-local array", "UnsupportedLeaf", "model/w"),
        ("a leaf of one cannot be stored", "UnsupportedLeaf", "f"),
        ("steps differ", "ProcessesDiffer", None),
    ],
)
def test_what_is_not_the_same_is_refused_by_all(
    refused: list[dict[str, Any]], case: str, error: str, leaf: str | None
) -> None:
    """With the leaf it is about, before anything is written; the next save works."""
    for one in refused:
        (kind, _, about, _, text), good = one[case]
        assert (kind, about, good) == (error, leaf, True), text


def test_the_text_says_who_has_what(refused: list[dict[str, Any]]) -> None:
    """Both sides, and what can be done."""
    text = refused[2]["a shape differs"][0][4]
    assert "process 0 has numpy.ndarray float64[3]" in text
    assert "process 1 numpy.ndarray float64[4]" in text
    assert "PerProcess" in text
    assert "jax.make_array_from_process_local_data" in refused[0]["a host-local array"][0][4]


def test_a_global_array_is_no_processs_own(refused: list[dict[str, Any]]) -> None:
    """Each is told the path that it has there."""
    for me, one in enumerate(refused):
        (kind, _, leaf, *_), good = one["a global array as one's own"]
        assert (kind, leaf, good) == ("UnsupportedLeaf", f"p/{me}", True)


def test_a_save_that_only_one_makes_fails_there_and_harms_nobody(
    refused: list[dict[str, Any]],
) -> None:
    """Only whole steps are there."""
    assert refused[0]["alone"][0] in ("ProcessSilent", "ProcessesDiffer")
    assert all(one["steps"] == [19, 29, 39, 49, 59, 69, 79, 89, 99, 201] for one in refused)


def test_different_directories_are_refused_at_opening(refused: list[dict[str, Any]]) -> None:
    """By all processes, with both names."""
    for one in refused:
        kind, _, _, _, text = one["directories"]
        assert kind == "ProcessesDiffer"
        assert "run-0" in text
        assert "run-1" in text


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What four processes hear of two kinds of failure at each stage."""
    return launch("failures", 4, tmp_path_factory.mktemp("failed") / "run", devices=1)


def test_a_failure_at_any_stage_is_heard_by_all(failed: list[dict[str, Any]]) -> None:
    """The same error, with the process that it came from; none of it is left, the next works."""
    cases = [name for name in failed[0] if " at " in name]
    assert len(cases) == 2 * (6 + 4)
    for case in cases:
        kind = "NoSpace" if case.startswith("disk full") else "CheckpointError"
        for me, one in enumerate(failed):
            (error, process, _, _, text), good, gone, victim = one[case]
            assert (error, good, gone) == (kind, "returned", True), (case, me, text)
            assert process == (None if me == victim else victim), (case, me, text)


def test_nothing_of_what_failed_is_left(failed: list[dict[str, Any]]) -> None:
    """Not even temporary directories; the last good step is the latest for all."""
    assert [one["left"] for one in failed] == [[]] * 4
    assert [one["latest"] for one in failed] == [2 * 2 * (6 + 4) + 1] * 4


def test_an_error_that_one_has_while_the_others_wait_is_heard_at_once(tmp_path: Path) -> None:
    """In a function, in planning, late in a snapshot, in the arguments of a restore, when busy."""
    one, other = launch("late", 2, tmp_path / "runs")
    for case, error, culprit in (
        ("function", "UnsupportedLeaf", 1),
        ("restore", "InvalidOption", 0),
        ("planning", "UnsupportedLeaf", 1),
        ("snapshot", "UnsupportedLeaf", 1),
    ):
        for me, said in enumerate((one, other)):
            heard = said[case][:2]
            assert heard == [error, None if me == culprit else culprit], (case, me, said[case])
    for said in (one, other):
        assert said["side by side"] == ["returned"] * 4
        assert (said["waits"], said["next"]) == (False, "returned")
        for on_busy in ("skip", "replace"):
            assert said[f"{on_busy} next"] == "returned"
            assert {said[f"{on_busy} {victim}"][0] for victim in (0, 1)} == {"UnsupportedLeaf"}


@pytest.mark.parametrize("stage", ["join", "write", "sync"])
def test_a_killed_process_leaves_no_step_and_is_named(tmp_path: Path, stage: str) -> None:
    """By all others, within the timeout; a new run goes on from the step before."""
    said = launch(
        "killed", 4, tmp_path / "run", stage, 2, devices=1, ends=[0, 0, -signal.SIGKILL, 0]
    )
    for me in (0, 1, 3):
        kind, process, *_ = said[me]["error"]
        assert (kind, process) == ("ProcessSilent", 2)
    assert_goes_on(tmp_path / "run", [1])


@pytest.mark.parametrize(
    ("stage", "steps"), [("share", [1]), ("write", [1]), ("publish", [1]), ("published", [1, 2])]
)
def test_process_0_killed_leaves_whole_steps_only(
    tmp_path: Path, stage: str, steps: list[int]
) -> None:
    """It is the one that commits, and jax ends the others, soon; a new run goes on."""
    ends = [-signal.SIGKILL, None, None, None]
    launch("killed", 4, tmp_path / "run", stage, 0, devices=1, ends=ends)
    assert_goes_on(tmp_path / "run", steps)


def assert_goes_on(directory: Path, steps: list[int]) -> None:
    """One process finds these steps, whole, saves another, and sweeps what was left."""
    with CheckpointManager(directory) as manager:
        assert manager.all_steps() == steps
        for step in steps:
            assert float(manager.restore(step)["w"].sum()) == 1024 * 1024
        manager.save(9, {"n": 1}).result()
    assert [name for name in os.listdir(directory) if name.startswith((".tmp", ".trash"))] == []
    assert ckptmgr.load(directory)["n"] == 1


def test_all_hear_that_the_directory_was_removed(tmp_path: Path) -> None:
    """At once, from the one process that holds its lock."""
    one, other = launch("removed", 2, tmp_path / "run", devices=1)
    for kind, *_, text in (one["error"], other["error"]):
        assert kind == "StorageError"
        assert "removed, moved or replaced" in text
    assert other["error"][1] == 0  # the process that told it
