"""Which format a path is of: each is asked, and exactly one must say yes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from ckptmgr.errors import CheckpointError, NoSuchStep, UnsupportedFormat
from ckptmgr.format.step import COMMIT_RECORD, step_number
from ckptmgr.interop import eformer, flax_msgpack, jax_tree, orbax, safetensors
from ckptmgr.interop.base import Foreign
from ckptmgr.storage.url import absolute, is_url

# By name: how it is recognised, and opened.
FORMATS: Final[dict[str, tuple[Callable[[str], bool], Callable[[str], Foreign]]]] = {
    module.NAME: (module.recognise, module.open_at)
    for module in (orbax, jax_tree, eformer, safetensors, flax_msgpack)
}


def recognised(path: str) -> str | None:
    """The format of what lies at a path; None where it is none of these.

    Raises:
      UnsupportedFormat: it is of several, so what is meant is not known.
    """
    found = [name for name, (recognise, _) in FORMATS.items() if recognise(path)]
    if len(found) > 1:
        raise UnsupportedFormat(f"this is of several formats: {', '.join(found)}", file=path)
    return found[0] if found else None


def open_foreign(path: str, step: int | None = None) -> Foreign:
    """Open what lies at a path, whatever its format.

    Raises:
      NoSuchStep: there is nothing that is known.
      DamagedStep, UnsupportedFormat: it cannot be read.
    """
    name = recognised(path)
    if name is None:
        raise NoSuchStep(
            f"there is no checkpoint of a format that is known here ({', '.join(FORMATS)})",
            file=os.path.abspath(path),
        )
    try:
        return orbax.open_at(path, step) if name == orbax.NAME else FORMATS[name][1](path)
    except CheckpointError as error:
        error.file = error.file or path
        raise


def foreign_path(path: str | os.PathLike[str]) -> str | None:
    """The absolute path of a checkpoint of another library; None where it is ours, or none.

    Raises:
      UnsupportedFormat: it is of several formats, ours among them.
    """
    text = absolute(path)
    if is_url(text) or not os.path.exists(text):
        return None
    name = recognised(text)
    if name and _is_ours(text):
        raise UnsupportedFormat(f"this is of several formats: ckptmgr, {name}", file=text)
    return text if name else None


def _is_ours(path: str) -> bool:
    if not os.path.isdir(path):
        return False
    names = os.listdir(path)
    return COMMIT_RECORD in names or any(step_number(name) is not None for name in names)
