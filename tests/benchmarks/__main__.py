"""The whole benchmark: its parts in turn, each in a process of its own.

Usage: python -m tests.benchmarks [--full] [--rounds N] [--directory DIRECTORY] [--only PART ...]

What was measured goes to results/bench.json as it comes, is shown as tables, and drawn as
results/*.png. A part that is not run now stays as it was measured last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from rich.console import Console

from tests.benchmarks import plots, tables
from tests.benchmarks.contenders import ALL
from tests.benchmarks.memory import CASES

_RESULTS: Final = "results"
_TMPFS: Final = "/dev/shm"  # measured as such
_BEST: Final = ("ckptmgr", "orbax", "jax", "raw x4", "direct x4")
_GROWTH: Final = ("ckptmgr", "orbax", "raw x4")
_ROUNDS: Final = "--rounds={rounds}"


class Part(NamedTuple):
    """A module of the benchmark and its arguments; `{directory}` and `{rounds}` are filled in."""

    name: str
    module: str
    arguments: tuple[str, ...]


def speed(work: str, who: Sequence[str] = (), directory: str = "{directory}") -> Part:
    """A work, by those named or by all."""
    names = ",".join(who or [one.name for one in ALL])
    name = work if directory.startswith("{") else f"{work}, tmpfs"
    return Part(name, "speed", (work, directory, f"--who={names}", _ROUNDS))


def parts(*, full: bool) -> Iterator[Part]:
    """What is run; those that are left out of a work would need an hour or 30 GB for it."""
    yield speed("llm", () if full else _BEST)
    yield speed("leaves-5000", _BEST)
    if full:
        yield speed("llm", directory=_TMPFS)
        yield speed("mixed", _BEST)
        for leaves in (100, 1000, 10_000):
            yield speed(f"leaves-{leaves}", _BEST)
        yield speed("leaves-100000", ["ckptmgr"])
        for megabytes in (256, 1024, 4096):
            yield speed(f"growth-{megabytes}", _GROWTH)
        yield speed("growth-8192", ["ckptmgr", "raw x4"])
        yield Part("loop", "loop", ("{directory}", _ROUNDS))
    yield Part("frozen", "frozen", ("{directory}", _ROUNDS))
    yield Part("steps", "steps", ("{directory}", _ROUNDS))
    yield Part("plan", "plan", (_ROUNDS,))
    for case in CASES:
        yield Part(f"memory: {case}", "memory", (case, "{directory}"))


def run(part: Part, directory: str, rounds: int) -> dict[str, Any]:
    """Run one part; what it printed."""
    arguments = [a.format(directory=directory, rounds=rounds) for a in part.arguments]
    command = [sys.executable, "-m", f"tests.benchmarks.{part.module}", *arguments]
    finished = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return dict(json.loads(finished.stdout))


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=_RESULTS)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", nargs="*", help="parts by name; none: only show and draw")
    arguments = parser.parse_args()
    os.makedirs(arguments.directory, exist_ok=True)
    os.makedirs(_RESULTS, exist_ok=True)
    file, results = f"{_RESULTS}/bench.json", dict[str, Any]()
    if os.path.exists(file):
        with open(file) as stored:
            results = json.load(stored)
    for part in parts(full=arguments.full):
        if arguments.only is not None and part.name not in arguments.only:
            continue
        results[part.name] = run(part, arguments.directory, arguments.rounds)
        with open(file, "w") as stored:
            json.dump(results, stored, indent=1)
    console = Console(width=200)
    for table in tables.of(results):
        console.print(table)
    for path in plots.draw(results, _RESULTS):
        console.print(f"drew {path}")


if __name__ == "__main__":
    main()
