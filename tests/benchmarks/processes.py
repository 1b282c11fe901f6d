"""What several processes cost: a small save by 1, 2 and 4 of them, and a step that is not due.

    python -m tests.benchmarks.processes

In turn, several times; medians. The difference to one process is the commit's overhead:
two rounds of messages and the merge of what was written.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path

from tests.multiprocess.launch import launch

_ROUNDS = 5


def main() -> None:
    """Print the milliseconds, as JSON."""
    saves: dict[int, list[float]] = {1: [], 2: [], 4: []}
    due: dict[int, list[float]] = {1: [], 2: [], 4: []}
    for _ in range(_ROUNDS):
        for count, times in saves.items():
            with tempfile.TemporaryDirectory() as folder:
                said = launch("overhead", count, Path(folder) / "run", devices=1)
            times.append(1e3 * statistics.median(said[0]["save"][5:]))
            due[count].append(1e3 * max(one["should_save"] for one in said))
    shown = {
        str(count): {"save ms": sorted(saves[count]), "should_save ms": max(due[count])}
        for count in saves
    }
    more = {c: statistics.median(saves[c]) - statistics.median(saves[1]) for c in (2, 4)}
    print(json.dumps({"processes": shown, "overhead ms": more}))


if __name__ == "__main__":
    main()
