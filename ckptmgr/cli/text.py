"""Lines of text: aligned columns that fit a terminal, JSON, and where they go."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ckptmgr.errors import CheckpointError, printable
from ckptmgr.units import span

_GAP: Final = "  "
_LEAST: Final = 12  # characters of the last column; with fewer another column goes first


class Column(NamedTuple):
    """A column: its heading; numbers stand right; `spare` says which goes first for room."""

    heading: str
    right: bool = False
    spare: int = 0


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """The lines of a table, cut to the terminal where there is one; elsewhere nothing is cut."""
    room = width()
    shown = [n for n in range(len(columns)) if any(row[n] for row in rows) or not columns[n].spare]
    widths = [max(len(c.heading), *(len(row[n]) for row in rows), 0) for n, c in enumerate(columns)]
    while room and len(shown) > 1:
        used = sum(widths[n] + len(_GAP) for n in shown[:-1]) + min(widths[shown[-1]], _LEAST)
        spare = max(shown, key=lambda n: columns[n].spare)
        if used <= room or not columns[spare].spare:
            break
        shown.remove(spare)
    for row in ([column.heading for column in columns], *rows):
        cells = [
            row[n].rjust(widths[n]) if columns[n].right else row[n].ljust(widths[n]) for n in shown
        ]
        yield cut(_GAP.join(cells).rstrip(), room)


def width() -> int:
    """The width of the terminal that is written to; 0 where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def cut(line: str, room: int) -> str:
    """A line of at most `room` characters; 0: of any."""
    return line if not room or len(line) <= room else f"{line[: room - 1]}…"


class NobodyReads(Exception):
    """Whoever was to read what is printed has gone."""


def say(lines: str | Iterable[str]) -> None:
    """Print, all at once; what a name holds that a terminal would obey is written out."""
    each = [lines] if isinstance(lines, str) else lines
    text = "\n".join(printable(line).replace("\n", "\\n") for line in each)
    if text:
        write(f"{text}\n")


def write(text: str) -> None:
    """Print text.

    Raises:
      NobodyReads: nobody does. No OSError: with that click would exit by a code of its own.
      CheckpointError: it cannot be written.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # The interpreter must not find that out once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise NobodyReads from error
        raise CheckpointError(f"this cannot be printed: {error.strerror}") from error


def say_json(value: object) -> None:
    """Print a value as one line of JSON; nan and inf are text there, as JSON knows neither."""
    write(msgspec.json.encode(_plain(value)).decode() + "\n")


def _plain(value: object) -> object:
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    assert isinstance(value, list | tuple | set | frozenset), value
    return [_plain(item) for item in value]


def age(then: float, now: float) -> str:
    """How long ago that was."""
    return f"{span(round(max(now - then, 0.0), 3))} ago"


def values(metrics: Mapping[str, object]) -> str:
    """Metrics in one cell: `loss=0.25 score=0.9`."""
    return " ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in metrics.items()
    )


def bar(fraction: float, cells: int = 20) -> str:
    """A bar of so many characters."""
    full = round(min(max(fraction, 0.0), 1.0) * cells)
    return "█" * full + "░" * (cells - full)
