"""Selection: which leaves of a checkpoint are wanted. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ckptmgr.errors import InvalidOption, TreeMismatch
from ckptmgr.tree.globs import by_globs
from ckptmgr.tree.rules import by_prefix, prefixes


class Selection:
    """What a caller's `select` says.

    Args:
      select: None for everything; a glob of key paths or a list of them; a prefix tree of
        bools, where what it does not name is not wanted; or a predicate of a leaf's path
        and what `load_structure` shows of it.

    Raises:
      InvalidOption: it is none of these.
    """

    def __init__(self, select: object = None) -> None:
        self.all = select is None
        self._predicate: Callable[[str, object], object] | None = None
        self._globs: list[tuple[str, bool]] = []
        self._prefixes: dict[str | None, object] = {}
        if isinstance(select, str):
            self._globs = [(select, True)]
        elif isinstance(select, list | tuple) and all(isinstance(glob, str) for glob in select):
            self._globs = [(glob, True) for glob in select]
        elif callable(select):
            self._predicate = select
        else:
            self._prefixes = prefixes(select, "select")
            for wanted in self._prefixes.values():
                if not (wanted is None or isinstance(wanted, bool | np.bool_)):
                    raise InvalidOption(
                        "select is a glob, a list of globs, a prefix tree of bools, or a "
                        f"predicate of path and leaf; it holds {wanted!r}"
                    )

    def of(self, paths: Sequence[str], form: Callable[[int], object]) -> list[bool]:
        """Whether each of these leaves is wanted; `form` shows one to a predicate.

        Raises:
          TreeMismatch: a glob or a prefix matches none of them.
        """
        if self.all:
            return [True] * len(paths)
        if self._predicate is not None:
            return [_ask(self._predicate, path, form(n)) for n, path in enumerate(paths)]
        if self._globs:
            return [bool(wanted) for wanted in by_globs(self._globs, paths, "select")]
        chosen, unused = by_prefix(self._prefixes, paths, unsaid=False)
        for path in unused:
            if self._prefixes[path]:
                raise TreeMismatch("select names what the checkpoint does not hold", leaf=path)
        return [bool(wanted) for wanted in chosen]


def _ask(predicate: Callable[[str, object], object], path: str, form: object) -> bool:
    try:
        return bool(predicate(path, form))
    except Exception as error:
        raise InvalidOption(f"the predicate of select failed: {error!r}", leaf=path) from error
