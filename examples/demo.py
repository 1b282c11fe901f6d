"""The life of a run: trained, killed while it saves, resumed, and compared with one never killed.

    python -m examples.demo

Ends with an error unless parameters, optimizer state and losses are bit-equal.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

import ckptmgr

KILL_FROM_STEP = 60  # of 120
WAIT_SECONDS = 600.0


def trainer(run: Path) -> subprocess.Popen[bytes]:
    """The example, as a process of its own."""
    command = [sys.executable, "-m", "examples.train_gpt", f"--run={run}", f"--result={run}.json"]
    return subprocess.Popen(command)


def kill_while_saving(run: Path) -> str:
    """Start a run and kill it while a step is being written; returns what was left of that."""
    process, deadline = trainer(run), time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        writing = [path.name for path in run.glob(".tmp-step-*")] if run.exists() else []
        if writing and int(writing[0].split("-")[2]) >= KILL_FROM_STEP:
            process.send_signal(signal.SIGKILL)
            process.wait()
            left = [path.name for path in run.glob(".tmp-step-*")]
            if left:
                return left[0]
            process = trainer(run)  # it had just committed: try again
    raise SystemExit("the trainer ended before it could be killed")


def same(one: Path | str, other: Path | str) -> bool:
    """Whether two runs ended in the same state, bit for bit."""
    left, right = (jax.tree.leaves(ckptmgr.load(run, shardings="numpy")) for run in (one, other))
    return len(left) == len(right) and all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(left, right, strict=True)
    )


def losses(run: Path) -> dict[str, str]:
    """The losses that a process of the run has seen, by step, as exact hexadecimal floats."""
    return dict(json.loads(Path(f"{run}.json").read_text()))


def main() -> None:
    """Run it all in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="ckptmgr-demo-") as folder:
        killed, whole = Path(folder) / "killed", Path(folder) / "uninterrupted"
        print("== a run, killed with SIGKILL while it saves", flush=True)
        print(f"killed; left behind: {kill_while_saving(killed)}", flush=True)
        print("== the same command again", flush=True)
        if trainer(killed).wait():
            raise SystemExit("the resumed run failed")
        print("== a run that nobody interrupts, to compare with", flush=True)
        if trainer(whole).wait():
            raise SystemExit("the uninterrupted run failed")
        resumed, expected = losses(killed), losses(whole)
        equal = all(expected[step] == loss for step, loss in resumed.items())
        print(f"parameters and optimizer state bit-equal: {same(killed, whole)}")
        print(f"losses after the resumption bit-equal: {equal} ({len(resumed)} steps)")
        if not (equal and same(killed, whole)):
            raise SystemExit("the resumed run is not the uninterrupted one")


if __name__ == "__main__":
    main()
