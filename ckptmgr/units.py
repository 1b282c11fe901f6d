"""Units: bytes, seconds and numbers of things as people read them."""

from __future__ import annotations

from typing import Final

_SIZES: Final = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_THOUSAND: Final = 1000
_SPANS: Final = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3))


def size(nbytes: float) -> str:
    """A number of bytes: `0 B`, `1.5 kB`, `23 MB`; in thousands, as disks are sold."""
    value, unit = float(nbytes), 0
    # What would be printed as 1000 of a unit is 1 of the next.
    while round(value, 0 if value >= 10 else 1) >= _THOUSAND and unit + 1 < len(_SIZES):  # noqa: PLR2004
        value, unit = value / _THOUSAND, unit + 1
    return f"{_short(value) if unit else round(value)} {_SIZES[unit]}"


def span(seconds: float) -> str:
    """A number of seconds: `1.3 ms`, `12 s`, `5.0 min`, `3.2 d`."""
    for unit, worth in _SPANS:
        if seconds >= worth:
            return f"{_short(seconds / worth)} {unit}"
    return f"{max(seconds, 0.0) * 1e3:.1f} ms"


def count(number: int, what: str, plural: str | None = None) -> str:
    """A number of things: `1 leaf`, `5 leaves`."""
    return f"{number} {what if number == 1 else plural or what + 's'}"


def leaves(number: int) -> str:
    """A number of leaves."""
    return count(number, "leaf", "leaves")


def _short(value: float) -> str:
    """Two digits, or all that stand before the point."""
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"  # noqa: PLR2004  # where it rounds to 10
