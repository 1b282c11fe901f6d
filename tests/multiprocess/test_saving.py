"""What several processes save comes back in any number of them, and each writes its share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptmgr
from ckptmgr import TreeMismatch
from tests.multiprocess.launch import launch
from tests.multiprocess.programs import SPECS, values


@pytest.fixture(scope="module", params=[2, 4])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of two or of four processes with two devices each, and what they said."""
    directory = tmp_path_factory.mktemp("run") / "run"
    return request.param, directory, launch("save", request.param, directory)


def test_a_save_comes_back_as_it_was(saved: Any) -> None:
    """Every array with its values and its sharding, every other leaf."""
    _, _, said = saved
    assert [one["equal"] for one in said] == [True] * len(said)
    assert [one["steps"] for one in said] == [[1]] * len(said)
    assert said[0]["specs"]["both"] == "P('x', 'y')"


def test_each_process_gets_its_own_position_back(saved: Any) -> None:
    """Numbers, arrays of different lengths and texts."""
    count, _, said = saved
    assert [one["position"] for one in said] == [
        [100 + me, [me] * (me + 1), "x" * me] for me in range(count)
    ]
    assert all(one["order"] for one in said)


def test_the_progress_of_each_is_of_its_own_share(saved: Any) -> None:
    """Together they wrote the tree once."""
    _, directory, said = saved
    assert all(one["written"] == one["total"] for one in said)
    with ckptmgr.CheckpointManager(directory, read_only=True) as reader:
        own = sum((me + 1) * 8 * 300_001 for me in range(len(said)))
        assert sum(one["written"] for one in said) == reader.info(1).nbytes
        assert reader.info(1).nbytes == own + 40 + sum(a.nbytes for a in values().values())


def test_one_process_reads_what_several_saved(saved: Any) -> None:
    """On its own devices, whatever they are; what was each one's own it must leave out."""
    count, directory, _ = saved
    found = ckptmgr.load(directory, select=[*SPECS, "numpy", "python"], shardings="numpy")
    for name, array in values().items():
        assert found[name].tobytes() == array.tobytes()
        assert found[name].shape == array.shape
    assert found["numpy"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(TreeMismatch, match=rf"each of {count} processes .* there are 1.*select="):
        ckptmgr.load(directory)
    shown = ckptmgr.load_structure(directory)
    assert len(shown["data"].value) == count


@pytest.mark.parametrize(("count", "devices"), [(2, 4), (4, 1)])
def test_another_number_of_processes_reads_it(saved: Any, count: int, devices: int) -> None:
    """As it was saved, on other meshes, cast and resized; each reads what it needs."""
    before, directory, _ = saved
    for one in launch("load", count, directory, devices=devices):
        own = one.pop("own")
        assert one == dict.fromkeys(one, True)
        if count != before:
            assert f"each of {before} processes for itself" in own
        else:
            assert own.startswith("{")


def test_a_replicated_tree_is_written_evenly(tmp_path: Path) -> None:
    """Within 10 % of even: one array of 12 MB, ten of 0.7 MB, two hundred of 4 kB."""
    said = launch("replicated", 4, tmp_path / "run", devices=1)
    for name in said[0]:
        shares = [one[name][0] for one in said]
        total = said[0][name][1]
        assert sum(shares) == total
        assert max(shares) <= 1.1 * total / 4, (name, shares)
        assert min(shares) >= 0.9 * total / 4, (name, shares)


def test_a_script_that_ends_without_close_has_saved(tmp_path: Path) -> None:
    """In all processes together, before jax ends its service."""
    launch("unclosed", 2, tmp_path / "run")
    with ckptmgr.CheckpointManager(tmp_path / "run") as manager:
        assert manager.all_steps() == [0, 1, 2]


def test_what_is_ones_own_may_be_nothing_or_lie_on_own_devices(tmp_path: Path) -> None:
    """And differ in its structure."""
    for one in launch("own", 2, tmp_path / "run"):
        assert one == dict.fromkeys(one, True)


def test_arrays_may_lie_on_the_devices_of_some_processes(tmp_path: Path) -> None:
    """The others have no part of them, and take part in everything else."""
    assert launch("few", 3, tmp_path / "run") == [{"False": True, "True": True}] * 3


def test_the_functions_save_and_load_with_several_processes(tmp_path: Path) -> None:
    """To a path, over it, and merged into it; nothing is left beside it."""
    said = launch("functional", 2, tmp_path / "runs")
    assert said == [{"saved": True, "merged": True, "left": ["one"]}] * 2
    found = ckptmgr.load(tmp_path / "runs" / "one")
    assert np.asarray(found["a"]).tolist() == list(range(8))


def test_a_step_that_is_not_due_costs_no_message(tmp_path: Path) -> None:
    """`should_save` is answered by each process itself."""
    for one in launch("quiet", 2, tmp_path / "run", devices=1):
        assert (one["due"], one["messages"]) == (False, 0)


def test_what_depends_on_time_is_the_same_in_all_processes(tmp_path: Path) -> None:
    """Skipped, replaced, saved when idle, forced: with one process slower than the other."""
    one, other = launch("busy", 2, tmp_path / "run", devices=1)
    assert one == other
    assert {"COMMITTED", "SKIPPED"} == set(one["skip"])
    assert {"COMMITTED", "CANCELLED"} == set(one["replace"])
    assert one["replace"][-1] == "COMMITTED"
    assert one["skip steps"] == [s for s, state in enumerate(one["skip"]) if state == "COMMITTED"]
    assert one["due"][0]
    assert 1 < sum(one["due"]) < 30
    assert one["forced"][1:] == [False, True]
