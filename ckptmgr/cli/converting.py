"""`convert`: a checkpoint in another format."""

from __future__ import annotations

from collections.abc import Sequence

from ckptmgr.cli import text
from ckptmgr.cli.checking import bar
from ckptmgr.conversion import convert


def run(
    source: str,
    target: str,
    to: str | None,
    step: int | None,
    select: Sequence[str],
    dtype: str | None,
    limit: str,
) -> None:
    """Convert, with a bar."""
    with bar(f"converting {source}") as tell:
        convert(
            source,
            target,
            to=to,
            step=step,
            select=select,
            dtype=dtype,
            in_flight_bytes=limit,
            tell=tell,
        )
    text.say(f"{target} is written")
