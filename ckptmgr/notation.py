"""The notation of rules: `KeepLast(3) | KeepEvery(steps=1000)`, as it is written in Python.

It is parsed, never evaluated: calls of the rules that are known here, with literal
arguments, joined by `|`. What `repr` says of a rule is read back as that rule.
"""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Iterable
from typing import Any, Final, TypeVar

from ckptmgr.cadence import At, Cadence, Every, OnPreemption, OverheadBelow, WhenIdle
from ckptmgr.errors import InvalidOption
from ckptmgr.retention import (
    KeepAll,
    KeepBest,
    KeepEvery,
    KeepLast,
    KeepSteps,
    KeepWithin,
    Retention,
)

R = TypeVar("R", Cadence, Retention)
_CADENCES: Final = (At, Every, OnPreemption, OverheadBelow, WhenIdle)
_RETENTIONS: Final = (KeepAll, KeepBest, KeepEvery, KeepLast, KeepSteps, KeepWithin)
_LONGEST: Final = 10_000  # characters; Python's parser recurses


def parse_retention(text: str) -> Retention:
    """What to keep.

    Raises:
      InvalidOption: it is no rule, or an argument of one is impossible.
    """
    return _parse(text, _RETENTIONS, "KeepLast(3) | KeepEvery(steps=1000)")


def parse_cadence(text: str) -> Cadence:
    """When to save.

    Raises:
      InvalidOption: as for `parse_retention`.
    """
    return _parse(text, _CADENCES, "Every(steps=100) | OnPreemption()")


def _parse(text: str, kinds: Iterable[type[R]], example: str) -> R:
    known = {kind.__name__: kind for kind in kinds}
    try:
        if len(text) > _LONGEST:
            raise SyntaxError("it is too long")  # noqa: TRY301  # told as any other fault of it
        # In brackets a rule may have several lines, and comments.
        found = _rule(ast.parse(f"(\n{text}\n)", mode="eval").body, known)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        said = getattr(error, "msg", None) or error
        raise InvalidOption(
            f"{text!r} cannot be read: {said}; a rule is written like {example!r}, of "
            + ", ".join(known)
        ) from error
    return found


def _rule(node: ast.expr, known: dict[str, type[R]]) -> R:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _rule(node.left, known) | _rule(node.right, known)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        said = ast.unparse(node)
        raise SyntaxError(f"{said!r} is no call of a rule")  # noqa: TRY004  # of the notation
    name = node.func.id
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        raise SyntaxError(f"no rule is called {name}" + (f"; {near[0]} is" if near else ""))
    positional = [_literal(argument) for argument in node.args]
    named: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise SyntaxError("** is not understood")
        named[keyword.arg] = _literal(keyword.value)
    try:
        return known[name](*positional, **named)
    except TypeError as error:
        raise SyntaxError(str(error).replace(".__init__()", "")) from error


def _literal(node: ast.expr) -> object:
    if isinstance(node, ast.Name) and node.id == "inf":
        return math.inf
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        said = ast.unparse(node)
        raise SyntaxError(f"{said} is no number or text, and no list or set of them") from error
