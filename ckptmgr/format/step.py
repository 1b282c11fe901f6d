"""Steps: their names on disk, and what is known of a committed one.

A directory named `step-<number>` that holds a valid commit record is a step; nothing
else is. The names of work in progress begin with a dot and end on a random nonce.
"""

from __future__ import annotations

import operator
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ckptmgr.errors import InvalidStep, NotAStep

COMMIT_RECORD = "checkpoint.json"
STATUS = ".status.json"
MANIFEST = "tree.json"
ARRAYS = "arrays"
PACKS = "packs"
NOTES = "notes"
LARGEST_STEP = 2**63 - 1

_STEP = re.compile(r"step-(\d{8}|[1-9]\d{8,18})")
_LEFTOVER = re.compile(
    r"\.(?:tmp|trash)-(?:\.(?:damaged|abandoned)-step-\d{8,19}-[0-9a-f]{16}|step-\d{8,19})"
    r"-[0-9a-f]{16}"
)


_CHUNK = r"c(\.\d+)*"
_OURS = re.compile(
    rf"{re.escape(COMMIT_RECORD)}|{re.escape(MANIFEST)}|{NOTES}/[^/]+"
    rf"|{ARRAYS}/([^/]+/)?zarr\.json|{ARRAYS}/[^/]+/{_CHUNK}|{PACKS}/\d+/(zarr\.json|{_CHUNK})"
)


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A committed step.

    Attributes:
      step: the number of updates done; None for a tree saved outside a run.
      time: when it was committed, in seconds since the epoch; never earlier than
        the commit before it.
      nbytes: the bytes of its leaves, before padding and metadata.
      leaves: how many leaves it holds.
      metrics, metadata: what the trainer gave, and what was annotated since.
      path: where it lies.
      pinned: no retention rule deletes it.
    """

    step: int | None
    time: float
    nbytes: int
    leaves: int
    path: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, object] = field(default_factory=dict)
    pinned: bool = False


def parse_step(value: object) -> int:
    """The step as an int; what it may be is anything that `operator.index` takes, bools aside.

    Raises:
      NotAStep: `value` is no integer.
      InvalidStep: it is negative or above 2**63 - 1.
    """
    if isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", "") == "b":
        raise NotAStep(f"a step is an integer, not the bool {value}")
    try:
        step = operator.index(value)  # type: ignore[arg-type]  # the call itself is the check
    except TypeError as error:
        raise NotAStep(
            f"a step is an integer, not a {type(value).__name__}; "
            "to restore into the structure of a tree give it as like=tree"
        ) from error
    if not 0 <= step <= LARGEST_STEP:
        raise InvalidStep(f"a step is at least 0 and at most 2**63 - 1, not {step}")
    return step


def step_name(step: int) -> str:
    """`step-00000100`: eight digits, more where the number needs them."""
    return f"step-{step:08d}"


def step_number(name: str) -> int | None:
    """The step that a directory of this name holds; None where it is no step's name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and int(match[1]) <= LARGEST_STEP else None


def nonce() -> str:
    """16 random hexadecimal digits."""
    return secrets.token_hex(8)


def temporary_name(name: str, kind: str) -> str:
    """The name of `name` while it is being written (kind `tmp`) or deleted (kind `trash`).

    Of kinds `damaged` and `abandoned` that of a step that was set aside, which nobody sweeps.
    """
    return f".{kind}-{name}-{nonce()}"


def is_leftover(name: str) -> bool:
    """Whether `name` is that of a write or deletion that a dead writer left."""
    return _LEFTOVER.fullmatch(name) is not None


def foreign(paths: Iterable[str]) -> list[str]:
    """Those of the files of a step that are none that we write: somebody else's."""
    return sorted(path for path in paths if _OURS.fullmatch(path) is None)
