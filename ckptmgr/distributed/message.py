"""What processes send each other: a few bytes or an error of ours, which crosses as its parts."""

from __future__ import annotations

import msgspec

from ckptmgr import errors
from ckptmgr.errors import CheckpointError, ProcessesDiffer


class Fault(msgspec.Struct, frozen=True):
    """An error on its way to another process."""

    kind: str
    message: str
    step: int | None
    leaf: str | None
    file: str | None
    process: int | None

    def error(self) -> CheckpointError:
        """It again, of the same class where that is one of ours."""
        kind = getattr(errors, self.kind, CheckpointError)
        known = isinstance(kind, type) and issubclass(kind, CheckpointError)
        made: CheckpointError = (kind if known else CheckpointError)(
            self.message, step=self.step, leaf=self.leaf, file=self.file, process=self.process
        )
        return made


class Message(msgspec.Struct, frozen=True):
    """A report to process 0 or its answer.

    `nonce` tells a report from the one before; its answer has it in its name. `step` is the
    step that it is about: a round is about one.
    """

    nonce: str
    body: bytes = b""
    step: int = 0
    fault: Fault | None = None


def fault(error: CheckpointError, process: int | None) -> Fault:
    """An error as it crosses; where it does not say which process failed, it was `process`."""
    about = process if error.process is None else error.process
    if isinstance(error, ProcessesDiffer):
        about = error.process  # it may be about all of them
    name = type(error).__name__
    return Fault(name, error.message, error.step, error.leaf, error.file, about)


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    return msgspec.msgpack.encode(message)


def decode(data: bytes) -> Message:
    """The message in these bytes, which another process of this very job wrote."""
    return msgspec.msgpack.decode(data, type=Message)
