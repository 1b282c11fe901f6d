"""One replica reads, the others receive; preemption of one process ends all at one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.multiprocess.launch import launch


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes, each a replica, say of restoring by broadcast."""
    return launch("broadcast", 2, tmp_path_factory.mktemp("broadcast") / "run")


def test_every_bit_comes_through(said: list[dict[str, Any]]) -> None:
    """NaN payloads and -0.0 too, of every width; with the shardings that were asked for."""
    for one in said:
        assert (one["equal"], one["placed"], one["resumed"]) == (True, True, True)
        assert one["host"] == [[0, 1, 2], 5]


def test_only_the_first_replica_reads(said: list[dict[str, Any]]) -> None:
    """The other reads the manifest and no array."""
    assert said[0]["reads"] > 0
    assert said[1]["reads"] == 0


def test_durations_go_to_jax_monitoring(said: list[dict[str, Any]]) -> None:
    """Of reading and of broadcasting; and of the save and the restore as wholes."""
    for one in said:
        assert one["heard"] == [
            "/ckptmgr/restore/broadcast_secs",
            "/ckptmgr/restore/read_secs",
            "/ckptmgr/restore/secs",
            "/ckptmgr/save/durable_secs",
            "/ckptmgr/save/stall_secs",
        ]


@pytest.mark.parametrize(
    ("case", "error", "text"),
    [
        ("divided", "InvalidOption", "arrays are divided along 'y'"),
        ("no axis", "InvalidOption", "no axis 'z'"),
        ("half inside", "InvalidOption", "process 0 lies in several replicas along 'x'"),
        ("async", "InvalidOption", "use restore"),
        ("different", "ProcessesDiffer", "like= or shardings= differ"),
        ("steps", "ProcessesDiffer", "process 0 restores step 1, process 1 step 2"),
        ("damaged", "DamagedStep", "bytes long"),
    ],
)
def test_what_cannot_be_broadcast_is_an_error_in_all(
    said: list[dict[str, Any]], case: str, error: str, text: str
) -> None:
    """None of them waits in a collective for the other."""
    for one in said:
        assert one[case][0] == error
        assert text in one[case][4]


@pytest.mark.parametrize("at", ["before the step", "after the step", "while it saves"])
@pytest.mark.parametrize("victim", [0, 1])
def test_sigterm_in_one_process_saves_the_same_step_in_all(
    tmp_path: Path, at: str, victim: int
) -> None:
    """Wherever in the loop it arrives; then both loops end."""
    one, other = launch("preemption", 2, tmp_path / "run", at, victim)
    assert one == other
    assert one["preempted"]
    assert one["latest"] == one["ended"] < 4000


def test_all_go_back_over_what_one_finds_damaged(tmp_path: Path) -> None:
    """To the same step; deleting and rolling back are process 0's, for all."""
    for one in launch("fallback", 2, tmp_path / "run"):
        assert one == {
            "resumed": 3,
            "known": [3, [1, 2, 3]],
            "again": [1, 2, 3, 4],
            "deleted": [1, 2, 4],
            "back": [2, 4],
            "left": [1],
            "held": "NoSuchStep",
            "after": [1, 2],
        }
