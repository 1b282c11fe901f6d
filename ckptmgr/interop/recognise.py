"""Which format a path is of: each is asked, and at most one may say yes.

By names and first bytes alone; nothing that takes time to import is needed for it.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from typing import Final

from ckptmgr.errors import StorageError, UnsupportedFormat
from ckptmgr.format.step import COMMIT_RECORD, LARGEST_STEP, step_number
from ckptmgr.storage.url import absolute, is_url

ORBAX_TREE: Final = "_METADATA"
ORBAX_ITEM: Final = "_CHECKPOINT_METADATA"
ORBAX_AGGREGATED: Final = "checkpoint"
JAX_TREE, JAX_STORE = "pytreedef.json", "array_store"
EFORMER_INDEX: Final = "tensorstore_index.json"
LONGEST_HEADER: Final = 100_000_000  # bytes of that of safetensors, as the format has it
_STEP: Final = re.compile(r"(?:[A-Za-z][\w-]*_)?(\d{1,19})")
_LENGTH: Final = struct.Struct("<Q")
_MAPS: Final = {bytes([first]) for first in (*range(0x80, 0x90), 0xDE, 0xDF)}  # of msgpack


def is_orbax_tree(path: str) -> bool:
    """Whether a directory is one tree of Orbax."""
    aggregated = _first(f"{path}/{ORBAX_AGGREGATED}", 1) in _MAPS
    return aggregated or os.path.isfile(f"{path}/{ORBAX_TREE}")


def is_orbax_step(path: str) -> bool:
    """Whether a directory is a committed step: it has metadata, or items that have."""
    if os.path.exists(f"{path}/{ORBAX_ITEM}") or is_orbax_tree(path):
        return True
    return any(is_orbax_tree(f"{path}/{name}") for name in os.listdir(path))


def orbax_number(name: str) -> int | None:
    """The step of a directory of this name, as Orbax has it: `7`, `ckpt_7`."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and int(match[1]) <= LARGEST_STEP else None


def orbax_steps(path: str) -> dict[int, str]:
    """The committed steps of a run of Orbax, each with its directory."""
    found = {}
    for name in os.listdir(path) if os.path.isdir(path) else ():
        step, directory = orbax_number(name), f"{path}/{name}"
        if step is not None and os.path.isdir(directory) and is_orbax_step(directory):
            found[step] = directory
    return dict(sorted(found.items()))


def _is_orbax(path: str) -> bool:
    if is_orbax_tree(path) or os.path.exists(f"{path}/{ORBAX_ITEM}"):
        return True
    return bool(orbax_steps(path))


def _is_jax(path: str) -> bool:
    return os.path.isfile(f"{path}/{JAX_TREE}") and os.path.isdir(f"{path}/{JAX_STORE}")


def _is_eformer(path: str) -> bool:
    return os.path.isfile(f"{path}/{EFORMER_INDEX}")


def _first(path: str, size: int) -> bytes:
    if not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read(size)


def _is_safetensors(path: str) -> bool:
    head = _first(path, _LENGTH.size + 1)
    if len(head) <= _LENGTH.size or head[-1:] != b"{":
        return False
    (length,) = _LENGTH.unpack(head[:-1])
    return bool(length <= LONGEST_HEADER)


def _is_msgpack(path: str) -> bool:
    return _first(path, 1) in _MAPS and not _is_safetensors(path)


FORMATS: Final[dict[str, Callable[[str], bool]]] = {
    "orbax": _is_orbax,
    "jax": _is_jax,
    "eformer": _is_eformer,
    "safetensors": _is_safetensors,
    "msgpack": _is_msgpack,
}


def recognised(path: str) -> str | None:
    """The format of what lies at a path; None where it is none of these.

    Raises:
      UnsupportedFormat: it is of several, so what is meant is not known.
    """
    found = [name for name, recognise in FORMATS.items() if recognise(path)]
    if len(found) > 1:
        raise UnsupportedFormat(f"this is of several formats: {', '.join(found)}", file=path)
    return found[0] if found else None


def foreign_path(path: str | os.PathLike[str]) -> str | None:
    """The absolute path of a checkpoint of another library; None where it is ours, or none.

    Raises:
      UnsupportedFormat: it is of several formats, ours among them.
    """
    text = absolute(path)
    if is_url(text) or not os.path.exists(text):
        return None
    if _is_ours(text):  # whatever lies beside its steps; but not in a checkpoint itself
        if os.path.exists(f"{text}/{COMMIT_RECORD}") and (name := recognised(text)):
            raise UnsupportedFormat(f"this is of several formats: ckptmgr, {name}", file=text)
        return None
    return text if recognised(text) else None


def _is_ours(path: str) -> bool:
    if not os.path.isdir(path):
        return False
    names = os.listdir(path)
    return COMMIT_RECORD in names or any(step_number(name) is not None for name in names)


def refuse_foreign_run(directory: str) -> None:
    """Refuse to write a run of ours into what another library has written.

    Raises:
      StorageError: it has.
    """
    name = None if is_url(directory) or not os.path.isdir(directory) else recognised(directory)
    if name and not _is_ours(directory):
        raise StorageError(
            f"this directory holds what {name} has written: give the run one of its own, and go on "
            "from this one by resume(state, import_from=...)",
            file=directory,
        )
