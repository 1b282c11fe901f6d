"""What is said of leaves by their paths: globs, and prefix trees. Pure.

A glob is matched against the text of a path, its `*` across `/` too; one that matches
a prefix takes the whole subtree. A prefix tree says one thing of each subtree, and is
matched by key paths, so that a namedtuple matches a dict of equal keys. What names
nothing is an error: it is a typing mistake.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

import jax

from ckptmgr.errors import InvalidOption, TreeMismatch
from ckptmgr.tree.structure import path_text

T = TypeVar("T")
U = TypeVar("U")
_SUGGESTIONS = 5


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


def prefixes(tree: object, option: str) -> dict[str | None, object]:
    """What a prefix tree says, by path; None is a value like others.

    The whole tree goes by None: the path "" is that of the key "".

    Raises:
      InvalidOption: jax cannot flatten it.
    """
    try:
        said, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is None)
    except (ValueError, TypeError) as error:
        raise InvalidOption(f"{option}: jax cannot flatten this tree: {error}") from error
    return {path_text(path) if path else None: value for path, value in said}


def by_prefix(
    said: Mapping[str | None, T], paths: Sequence[str], unsaid: U
) -> tuple[list[T | U], set[str | None]]:
    """What is said of each path, `unsaid` where nothing is; and the prefixes of no path."""
    found: list[T | U] = []
    used: set[str | None] = set()
    for path in paths:
        prefix: str | None = path
        while prefix is not None and prefix not in said:
            prefix = prefix.rpartition("/")[0] if "/" in prefix else None
        used.add(prefix)
        found.append(said.get(prefix, unsaid))
    return found, said.keys() - used
