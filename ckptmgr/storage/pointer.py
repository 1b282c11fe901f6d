"""Pointers: the object that makes a step in an object store: where its data lies, and its record.

One line of JSON, then the bytes of the commit record as they are in a local step.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from ckptmgr.errors import StorageError

_LONGEST: Final = 2048  # bytes of the line
_DATA: Final = re.compile(r"[^/]{1,255}/[0-9a-f]{16}")


class Pointer(msgspec.Struct, frozen=True):
    """`data`: the prefix of a step's data, below that of the run."""

    data: str

    def joined(self, record: bytes) -> bytes:
        """The bytes of the object."""
        return msgspec.json.encode(self) + b"\n" + record


def is_data(prefix: str) -> bool:
    """Whether this is the prefix of the data of an attempt."""
    return _DATA.fullmatch(prefix) is not None and not prefix.startswith(("../", "./"))


def pointed(data: bytes, file: str) -> tuple[Pointer, bytes]:
    """The pointer and the commit record in the bytes of an object.

    Raises:
      StorageError: it points nowhere, or to where none of ours does.
    """
    line = data[:_LONGEST].partition(b"\n")[0]
    try:
        pointer = msgspec.json.decode(line, type=Pointer)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StorageError(f"it does not say where the data lies: {error}", file=file) from error
    if not is_data(pointer.data):
        raise StorageError(f"it points to {pointer.data!r}, where no data of ours lies", file=file)
    return pointer, data[len(line) + 1 :]
