"""What was measured, as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any, Final

from rich.table import Table

from tests.benchmarks.works import WORKS

US: Final = "ckptmgr"
FIGURES: Final = {
    "stall": "stall",
    "loop_stall": "stall, donating loop",
    "step_excess": "excess of 8 steps",
    "durable": "durable",
    "restore_cold": "restore, cold",
    "restore_warm": "restore, warm",
}
_MIB: Final = 1 << 20


def of(results: dict[str, Any]) -> Iterator[Table]:
    """The tables of all that is there."""
    for work in (f"{work}{where}" for work in WORKS for where in ("", ", tmpfs")):
        if work in results:
            yield _speed(work, results[work]["nbytes"], results[work]["figures"])
    if "loop" in results:
        yield _loop(results["loop"])
    if "frozen" in results:
        yield _frozen(results["frozen"]["figures"])
    if "steps" in results:
        yield _steps(results["steps"])
    if "plan" in results:
        yield _plan(results["plan"]["plan"])
    memory = [found for name, found in results.items() if name.startswith("memory")]
    if memory:
        yield _memory(memory)


def spread(values: list[float]) -> str:
    """The median with minimum and maximum, in milliseconds."""
    low, middle, high = (1e3 * f(values) for f in (min, statistics.median, max))
    digits = 1 if middle < 100 else 0
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _speed(work: str, nbytes: int, figures: dict[str, dict[str, list[float]]]) -> Table:
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


def _loop(found: dict[str, Any]) -> Table:
    """The steps' times beside those without saves, and what `OverheadBelow` cost."""
    overhead = found["overhead"]
    title = f"a train loop; OverheadBelow(0.01) cost {overhead['share']:.2%}"
    table = Table(
        "saving back to back", "step p50, ms", "x alone", "p99, ms", "x alone", "saves", title=title
    )
    alone = found["figures"]["alone"]
    for who, figures in found["figures"].items():
        cells = []
        for cut in ("p50", "p99"):
            ratio = statistics.median(figures[cut]) / statistics.median(alone[cut])
            cells += [spread(figures[cut]), f"{ratio:.2f}"]
        table.add_row(who, *cells, str(statistics.median(figures["saves"])))
    return table


def _frozen(figures: dict[str, dict[str, list[float]]]) -> Table:
    table = Table("llm, a tenth of it changed", "durable, ms", "bytes written, % of the tree")
    for kind, found in figures.items():
        written = f"{100 * statistics.median(found['bytes']):.1f}"
        table.add_row(kind, spread(found["durable"]), written)
    return table


def _steps(found: dict[str, Any]) -> Table:
    table = Table(f"a directory of {found['steps']:,} steps", "ms")
    for what, values in found["figures"].items():
        table.add_row(what, spread(values))
    return table


def _memory(found: list[dict[str, object]]) -> Table:
    """Each case in MiB."""
    table = Table(
        "llm, in_flight_bytes=256MiB", "extra peak MiB", "of it borrowed MiB", title="memory"
    )
    for case in found:
        extra, borrowed = (f"{float(str(case[name])) / _MIB:.0f}" for name in ("extra", "borrowed"))
        table.add_row(str(case["case"]), extra, borrowed)
    return table


def _plan(found: dict[str, dict[str, list[float]]]) -> Table:
    """Microseconds a leaf, for each number of leaves."""
    table = Table("leaves", "first", "cached", title="flatten + structure + plan, us a leaf")
    for leaves, times in found.items():
        cells = (f"{statistics.median(times[name]):.1f}" for name in ("first", "cached"))
        table.add_row(f"{int(leaves):,}", *cells)
    return table
