"""The soak: `make soak`. Ten thousand saves with everything else in between, on one manager.

After each operation manager and model agree; every thousand saves the resources are
counted. Ends with an error where memory has grown by more than 5 % since the first
thousand, or a thread or a descriptor was left.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.soak.machine import Machine, quiet

SAVES = 10_000
EVERY = 1_000
GROWTH = 1.05
SEED = 20


class Use(NamedTuple):
    """What the process has: memory in bytes, threads, open files."""

    memory: int
    threads: int
    files: int


def used() -> Use:
    """What it has now."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    memory = int(status["VmRSS"].split()[0]) << 10
    return Use(memory, int(status["Threads"]), len(os.listdir("/proc/self/fd")))


def operate(machine: Machine, chance: random.Random) -> str:
    """One operation, most often a save of the next step; its name."""
    there = machine.model.names
    newest = there[-1] if there else 0
    weights = {
        "save": 40, "overwrite": 3, "fail": 4, "refuse": 2, "cancel": 4, "several": 4,
        "annotate": 8, "pin": 1, "unpin": 2, "hold": 1, "release": 2, "delete": 1,
        "rollback": 1, "restore": 8, "resume": 2, "verify": 2, "reopen": 0.2,
    }  # fmt: skip
    name = chance.choices(list(weights), list(weights.values()))[0]
    any_there = chance.choice(there) if there else newest
    if name == "save":
        machine.save(newest + chance.choice((1, 1, 1, 10)), {"score": chance.random()})
    elif name in ("overwrite", "fail", "refuse", "several"):
        getattr(machine, name)(newest + chance.choice((0, 1)))
    elif name == "cancel":
        machine.cancel(newest + 1, newest + 2)
    elif name in ("release", "resume", "reopen"):
        getattr(machine, name)()
    elif not there:
        return "nothing"
    elif name == "annotate":
        machine.annotate(any_there, chance.random())
    else:
        getattr(machine, name)(max(any_there, there[-3:][0]) if name == "rollback" else any_there)
    return name


def main() -> None:
    """Run it, and judge."""
    quiet()
    done: Counter[str] = Counter()
    chance, began = random.Random(SEED), time.monotonic()
    first: Use | None = None
    with tempfile.TemporaryDirectory(prefix="ckptmgr-soak-") as directory:
        machine = Machine(Path(directory) / "run")
        told = 0
        while machine.saves < SAVES:
            done[operate(machine, chance)] += 1
            machine.check()
            if machine.saves // EVERY > told:
                told = machine.saves // EVERY
                machine.release()
                use = used()
                first = first or use
                print(
                    f"{machine.saves:6d} saves, {sum(done.values())} operations, "
                    f"{time.monotonic() - began:.0f} s: {use.memory / 1e6:.1f} MB, "
                    f"{use.threads} threads, {use.files} files, "
                    f"{len(machine.model.steps)} steps",
                    flush=True,
                )
        machine.release()
        last = used()
        machine.close()
    print(", ".join(f"{name} {count}" for name, count in done.most_common()))
    assert first is not None
    growth = last.memory / first.memory
    print(f"memory since the first thousand: x {growth:.3f}")
    if growth > GROWTH or last[1:] != first[1:]:
        sys.exit(f"it does not stay as it was: {first} became {last}")


if __name__ == "__main__":
    main()
