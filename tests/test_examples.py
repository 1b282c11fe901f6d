"""The examples run as their docstrings say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from examples.demo import same


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
