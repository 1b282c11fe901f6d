"""The whole benchmark: speed of each work, memory, planning, as tables and as results/bench.json.

Usage: python -m tests.benchmarks [--rounds N] [--directory DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

from rich.console import Console
from rich.table import Table

from tests.benchmarks.memory import CASES
from tests.benchmarks.works import WORKS

SHORT = ("llm", "leaves-5000")  # the works of `make bench`; all of them are `make bench-full`'s
US = "ckptmgr"
FIGURES = {
    "stall": "stall",
    "loop_stall": "stall, donating loop",
    "step_excess": "excess of 8 steps",
    "durable": "durable",
    "restore_cold": "restore, cold",
    "restore_warm": "restore, warm",
}
_MIB = 1 << 20


def run(module: str, *arguments: str) -> dict[str, object]:
    """One part of the benchmark, in a process of its own."""
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", *arguments]
    finished = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return dict(json.loads(finished.stdout))


def spread(values: list[float]) -> str:
    """The median with minimum and maximum, in milliseconds."""
    low, middle, high = (1e3 * f(values) for f in (min, statistics.median, max))
    digits = 1 if middle < 100 else 0
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def speed_table(work: str, nbytes: int, figures: dict[str, dict[str, list[float]]]) -> Table:
    """A row for each contender: its figures, and how many times ours its median is."""
    title = f"{work}, {nbytes / 1e6:.0f} MB; ms: median (min to max) x how many times ours"
    table = Table("who", *FIGURES.values(), "on disk", title=title)
    for name, found in figures.items():
        cells = []
        for figure in FIGURES:
            values, ours = found.get(figure), figures[US].get(figure)
            if not values or not ours:
                cells.append("-")
                continue
            ratio = statistics.median(values) / max(statistics.median(ours), 1e-9)
            cells.append(spread(values) if name == US else f"{spread(values)} x{ratio:.2f}")
        table.add_row(name, *cells, f"{statistics.median(found['bytes_on_disk']) / nbytes:.2f}")
    return table


def memory_table(found: list[dict[str, object]]) -> Table:
    """Each case in MiB."""
    table = Table(
        "llm, in_flight_bytes=256MiB", "extra peak MiB", "of it borrowed MiB", title="memory"
    )
    for case in found:
        extra, borrowed = (f"{float(str(case[name])) / _MIB:.0f}" for name in ("extra", "borrowed"))
        table.add_row(str(case["case"]), extra, borrowed)
    return table


def plan_table(found: dict[str, dict[str, list[float]]]) -> Table:
    """Microseconds a leaf, for each number of leaves."""
    table = Table("leaves", "first", "cached", title="flatten + structure + plan, us a leaf")
    for leaves, times in found.items():
        cells = (f"{statistics.median(times[name]):.1f}" for name in ("first", "cached"))
        table.add_row(f"{int(leaves):,}", *cells)
    return table


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default="results")
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    os.makedirs(arguments.directory, exist_ok=True)
    os.makedirs("results", exist_ok=True)
    console, results = Console(width=200), {}
    for work in WORKS if arguments.full else SHORT:
        result = run("speed", work, arguments.directory, f"--rounds={arguments.rounds}")
        results[work] = result
        console.print(speed_table(work, result["nbytes"], result["figures"]))  # type: ignore[arg-type]  # as speed.py writes them
    memory = [run("memory", case, arguments.directory) for case in CASES]
    console.print(memory_table(memory))
    plan = run("plan", f"--rounds={arguments.rounds}")["plan"]
    console.print(plan_table(plan))  # type: ignore[arg-type]  # as plan.py writes it
    with open("results/bench.json", "w") as file:
        json.dump({**results, "memory": memory, "plan": plan}, file, indent=1)


if __name__ == "__main__":
    main()
