"""What was measured, as plots: against the rivals, as the work grows, and beside training."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Final

import matplotlib as mpl

mpl.use("agg")  # before pyplot is imported: no display is needed

from matplotlib import pyplot as plt
from matplotlib.ticker import NullFormatter

_PEERS: Final = ("ckptmgr", "orbax", "orbax zarr3", "jax", "safetensors", "raw", "direct")
_PALETTE: Any = plt.cm  # its maps are made at run time
_COLOURS: Final = dict(zip(_PEERS, _PALETTE.tab10.colors, strict=False))
_FIGURES: Final = {
    "stall": "stall of save()",
    "durable": "until durable",
    "restore_cold": "restore, cold",
    "restore_warm": "restore, warm",
}


def draw(results: dict[str, Any], directory: str) -> Iterator[str]:
    """Write the plots of what is there as PNG; their paths."""
    works = [work for work in ("llm", "llm, tmpfs", "leaves-5000") if work in results]
    if works:
        yield _saved(_peers(results, works), f"{directory}/peers.png")
    if any(name.startswith("growth") for name in results):
        yield _saved(_scaling(results), f"{directory}/scaling.png")
    if "loop" in results:
        yield _saved(_loop(results["loop"]["figures"]), f"{directory}/loop.png")


def _saved(figure: Any, path: str) -> str:
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return path


def _best(figures: dict[str, Any], peer: str, figure: str) -> float | None:
    """The median of a peer; of the raw writers that of the best number of threads."""
    own = [f for name, f in figures.items() if name == peer or name.startswith(f"{peer} x")]
    found = [statistics.median(f[figure]) for f in own if f.get(figure)]
    return min(found, default=None)


def _peers(results: dict[str, Any], works: Sequence[str]) -> Any:
    """For each work and figure a bar for each peer, in milliseconds, on a scale of its own."""
    canvas, axes = plt.subplots(
        len(works), len(_FIGURES), figsize=(13, 2.3 * len(works)), squeeze=False
    )
    for row, work in zip(axes, works, strict=True):
        for axis, (figure, title) in zip(row, _FIGURES.items(), strict=True):
            found = [(p, _best(results[work]["figures"], p, figure)) for p in _PEERS]
            there = [(peer, 1e3 * value) for peer, value in reversed(found) if value is not None]
            if figure == "stall":  # these do not return before all is written
                there = [(peer, value) for peer, value in there if peer not in ("raw", "direct")]
            names, values = zip(*there, strict=True)
            bars = axis.barh(names, values, color=[_COLOURS[name] for name in names])
            labels = [f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in values]
            axis.bar_label(bars, labels, padding=3, fontsize=8)
            axis.set_xscale("log")
            axis.xaxis.set_visible(False)  # the bars say it
            axis.set_xlim(min(values) / 3, max(values) * 4)
            axis.set_title(f"{work}: {title}, ms", fontsize=9)
            axis.tick_params(labelsize=8)
            axis.spines[["top", "right"]].set_visible(False)
    canvas.tight_layout()
    return canvas


def _scaling(results: dict[str, Any]) -> Any:
    """Seconds against the number of leaves, and against the bytes, on logarithmic scales."""
    canvas, axes = plt.subplots(1, 2, figsize=(11, 3.8))
    for axis, kind, unit in zip(axes, ("leaves", "growth"), ("leaves", "MB"), strict=True):
        sizes = sorted(int(n.split("-")[1]) for n in results if n.startswith(f"{kind}-"))
        for peer in ("ckptmgr", "orbax", "raw"):
            for figure, style in (("durable", "o-"), ("restore_warm", "s--")):
                found = [
                    (size, _best(results[f"{kind}-{size}"]["figures"], peer, figure))
                    for size in sizes
                ]
                there = [(size, value) for size, value in found if value is not None]
                if there:
                    label = f"{peer}, {_FIGURES[figure]}"
                    axis.plot(*zip(*there, strict=True), style, color=_COLOURS[peer], label=label)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel(unit)
        axis.set_ylabel("seconds")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(fontsize=8)
    canvas.tight_layout()
    return canvas


def _loop(figures: dict[str, Any]) -> Any:
    """The median and the 99th percentile of the steps' times."""
    canvas, axis = plt.subplots(figsize=(6, 2.2))
    names = list(reversed(figures))
    for offset, cut, shade in ((0.2, "p50", 1.0), (-0.2, "p99", 0.5)):
        values = [1e3 * statistics.median(figures[name][cut]) for name in names]
        places = [place + offset for place in range(len(names))]
        bars = axis.barh(places, values, height=0.36, alpha=shade, color="C0", label=cut)
        axis.bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
    axis.set_yticks(range(len(names)), ["no saves" if name == "alone" else name for name in names])
    axis.set_title("time of a step while saves follow each other, ms", fontsize=9)
    axis.legend(fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    return canvas
