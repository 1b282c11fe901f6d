"""Opening what lies at a path, whatever its format."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from ckptmgr.errors import CheckpointError, DamagedStep, NoSuchStep
from ckptmgr.interop import eformer, flax_msgpack, jax_tree, orbax, safetensors
from ckptmgr.interop.base import Foreign
from ckptmgr.interop.recognise import FORMATS, recognised

_OPEN: Final[dict[str, Callable[[str], Foreign]]] = {
    module.NAME: module.open_at for module in (orbax, jax_tree, eformer, safetensors, flax_msgpack)
}


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
        if name == orbax.NAME:
            return orbax.open_at(path, step)
        if step is not None:
            raise NoSuchStep(f"this is one checkpoint, of {name}: it has no steps", step=step)
        return _OPEN[name](path)
    except RecursionError as error:
        raise DamagedStep("its tree is nested too deep", file=path) from error
    except CheckpointError as error:
        error.file = error.file or path
        raise
