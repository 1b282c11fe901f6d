"""What is said of leaves by prefix trees. Pure.

A prefix tree says one thing of each subtree, and is matched by key paths, so that a
namedtuple matches a dict of equal keys. What names nothing is an error: it is a typing
mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import jax

from ckptmgr.errors import InvalidOption
from ckptmgr.tree.structure import path_text

T = TypeVar("T")
U = TypeVar("U")


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
