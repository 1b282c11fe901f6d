"""The examples run as their docstrings say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckptmgr import CheckpointManager
from ckptmgr.format.manifest import LeafEntry
from ckptmgr.pipeline.records import read_both
from ckptmgr.storage.local import LocalStorage
from examples.demo import same

ROOT = Path(__file__).parent.parent


def test_a_run_goes_on_in_another_number_of_processes(run: Path) -> None:
    """To the same end, bit for bit, as without a break."""

    def ended(directory: Path, processes: int, steps: int) -> list[str]:
        command = [sys.executable, "-m", "examples.train_multiprocess", f"--run={directory}"]
        finished = subprocess.run(
            [*command, f"--processes={processes}", f"--steps={steps}"],
            cwd=Path(__file__).parent.parent,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=240,
        )
        return [line for line in finished.stdout.splitlines() if "Gloo" not in line]

    assert ended(run, 2, 5)[0] == "2 processes: started at step 0"
    assert ended(run, 4, 10)[0] == "4 processes: resumed at step 5"
    whole = run.with_name("whole")
    assert ended(whole, 1, 10)[-1] == "ended at step 10"
    assert same(run, whole)


def sharded(run: Path, mesh: str) -> list[str]:
    """The lines of one call of the sharded example."""
    command = [sys.executable, "-m", "examples.train_sharded", f"--run={run}", f"--mesh={mesh}"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    root = Path(__file__).parent.parent
    finished = subprocess.run(
        command,
        env=environment,
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    return finished.stdout.splitlines()


def test_a_run_goes_on_on_a_mesh_of_another_shape(run: Path) -> None:
    """And on one device."""
    first, second, third = (sharded(run, mesh) for mesh in ("4x2", "2x4", "1x1"))
    assert first[0] == "mesh 4x2: started at step 0"
    assert first[-1] == "ended at step 20; a shard of `up` is 64 x 512"
    assert second[0] == "mesh 2x4: resumed at step 20"
    assert second[-1] == "ended at step 40; a shard of `up` is 128 x 256"
    assert third[0] == "mesh 1x1: resumed at step 40"
    losses = [float(line.split()[3]) for line in (*first, *second, *third) if "loss" in line]
    assert losses == sorted(losses, reverse=True)


def lines_of(example: str, *flags: str) -> list[str]:
    """What an example prints."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    finished = subprocess.run(
        [sys.executable, "-m", f"examples.{example}", *flags],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=240,
    )
    return finished.stdout.splitlines()


@pytest.mark.parametrize("name", ["linen", "nnx", "equinox", "iterator", "asyncio"])
def test_a_trainer_goes_on_bit_for_bit(name: str, run: Path) -> None:
    """As if it had never ended."""
    first = lines_of(f"train_{name}", f"--run={run}", "--steps=10")
    second = lines_of(f"train_{name}", f"--run={run}", "--steps=20")
    assert (first[0], first[-1]) == ("started at step 0", "ended at step 10")
    assert (second[0], second[-1]) == ("resumed at step 10", "ended at step 20")
    whole = run.with_name("whole")
    lines_of(f"train_{name}", f"--run={whole}", "--steps=20")
    assert {leaf.path: leaf.arrays for leaf in manifest_of(run)} == {
        leaf.path: leaf.arrays for leaf in manifest_of(whole)
    }


def manifest_of(run: Path) -> tuple[LeafEntry, ...]:
    """The leaves of the newest step, with the digests of their bytes."""
    _, _, manifest = read_both(LocalStorage(str(run)), "step-00000020")
    return manifest.leaves


def test_weights_of_another_run_are_a_better_start_than_none(run: Path) -> None:
    """With another optimizer and another head."""
    _, second = lines_of("warm_start", f"--run={run}")
    warmed, cold = (float(word) for word in second.replace(",", "").split() if word[0] == "0")
    assert warmed < cold


def test_an_evaluator_scores_a_run_that_is_being_written(run: Path) -> None:
    """And the best step that it found stays."""
    said = sorted(lines_of("evaluate", f"--run={run}"))
    assert said[1] == "the trainer saved 200 steps"
    assert said[0].endswith("the best that is left is step 200")


def test_a_sweep_pins_its_best_step(run: Path) -> None:
    """Of the best of its runs."""
    *_, pinned, weights = lines_of("sweep", f"--run={run}")
    path = pinned.removeprefix("pinned: ").partition(",")[0]
    with CheckpointManager(Path(path).parent, read_only=True) as manager:
        assert manager.info(int(path[-8:])).pinned
    assert weights.startswith("its weights are ones but for ")


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """As a newcomer would run it."""
    (tmp_path / "tour.ipynb").write_text((ROOT / "examples" / "tour.ipynb").read_text())
    subprocess.run(
        [sys.executable, "-m", "jupyter", "execute", "--inplace", str(tmp_path / "tour.ipynb")],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=240,
    )
    assert '"execution_count": 1' in (tmp_path / "tour.ipynb").read_text()


def test_every_example_is_short_and_has_a_make_target() -> None:
    """Those that people start from; `make example-NAME`."""
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    short = {"train_linen", "train_nnx", "train_equinox", "train_iterator", "train_asyncio"}
    short |= {"warm_start", "evaluate", "sweep"}
    assert short <= names
    makefile = (ROOT / "Makefile").read_text()
    for name in short:
        assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < 120
        assert f" {name}" in makefile, name
