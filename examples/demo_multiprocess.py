"""A job of two processes, one of which is killed while it saves, resumed by four.

    python -m examples.demo_multiprocess

Then the other way round; each is compared with a run that nobody interrupts. Ends with
an error unless parameters and optimizer state are bit-equal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from examples.demo import same

KILL_FROM_STEP = 15  # of 40
WAIT_SECONDS = 300.0


def job(run: Path, processes: int, *, quiet: bool = False) -> subprocess.Popen[bytes]:
    """The example, which starts its processes itself; `quiet` about how jax ends them."""
    command = [sys.executable, "-m", "examples.train_multiprocess"]
    flags = [f"--run={run}", f"--processes={processes}"]
    return subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL if quiet else None)


def member(started: subprocess.Popen[bytes], index: int) -> int:
    """The pid of one of the processes that a job has started."""
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    for pid in map(int, children):
        if f"--index={index}" in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
            return pid
    raise SystemExit(f"the job has no process {index}")


def kill_one_while_saving(run: Path, processes: int, index: int) -> str:
    """Start a job and kill one of its processes while a step is written; what was left of that."""
    started, deadline = job(run, processes, quiet=True), time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and started.poll() is None:
        writing = [path.name for path in run.glob(".tmp-step-*")] if run.exists() else []
        if writing and int(writing[0].split("-")[2]) >= KILL_FROM_STEP:
            os.kill(member(started, index), signal.SIGKILL)
            began = time.monotonic()
            started.wait(WAIT_SECONDS)
            print(f"the others ended {time.monotonic() - began:.0f} s after it", flush=True)
            return writing[0]
    raise SystemExit("the job ended before one of its processes could be killed")


def finished(run: Path, processes: int) -> Path:
    """The run, brought to its end by so many processes."""
    if job(run, processes).wait(WAIT_SECONDS):
        raise SystemExit(f"the run by {processes} processes failed")
    return run


def main() -> None:
    """Run it all in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="ckptmgr-demo-") as folder:
        print("== two processes, which nobody interrupts", flush=True)
        whole = finished(Path(folder) / "uninterrupted", 2)
        for before, after, index in ((2, 4, 1), (4, 2, 2)):
            run = Path(folder) / f"from-{before}-to-{after}"
            print(f"== {before} processes, of which {index} is killed while it saves", flush=True)
            print(f"was being written: {kill_one_while_saving(run, before, index)}", flush=True)
            print(f"== {after} processes go on", flush=True)
            equal = same(finished(run, after), whole)
            print(f"parameters and optimizer state bit-equal: {equal}", flush=True)
            if not equal:
                raise SystemExit("the resumed run is not the uninterrupted one")


if __name__ == "__main__":
    main()
