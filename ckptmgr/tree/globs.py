"""What is said of leaves by globs of their paths. Pure, and without jax.

A glob is matched against the text of a path, its `*` across `/` too; one that matches
a prefix takes the whole subtree. One that matches nothing is an error.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import re
from collections.abc import Sequence
from typing import Final, TypeVar

from ckptmgr.errors import TreeMismatch

T = TypeVar("T")
_SUGGESTIONS: Final = 5


def by_globs(rules: Sequence[tuple[str, T]], paths: Sequence[str], option: str) -> list[T | None]:
    """What the first rule that matches each path says; None where none does.

    Raises:
      TreeMismatch: a glob matches no path; suggests some.
    """
    found: list[T | None] = [None] * len(paths)
    for glob, value in reversed(rules):
        matches = _pattern(glob).match
        hits = [number for number, path in enumerate(paths) if matches(path)]
        if not hits:
            raise TreeMismatch(f"{option}: {glob!r} matches no leaf; {_suggest(glob, paths)}")
        for number in hits:
            found[number] = value
    return found


@functools.lru_cache(maxsize=256)
def _pattern(glob: str) -> re.Pattern[str]:
    whole = fnmatch.translate(glob)
    return re.compile(f"{whole[:-2]}(?:/.*)?{whole[-2:]}", re.DOTALL)


def _suggest(text: str, paths: Sequence[str]) -> str:
    near = difflib.get_close_matches(text, paths[:1000], _SUGGESTIONS, cutoff=0.4)
    shown = ", ".join(map(repr, near or paths[:_SUGGESTIONS]))
    return f"there are {len(paths)} leaves, such as {shown}" if paths else "there are none"
