"""Every error that ckptmgr raises on purpose.

All derive from `CheckpointError`. Each carries what it is about (step, leaf path,
file, process) as attributes and in its text, and its text says what the user can
do. An error that also fits a builtin (ValueError, TypeError, LookupError,
TimeoutError) derives from that as well. Foreign errors are translated once, where
they enter, and stay reachable as `__cause__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from concurrent.futures import Future


_LONGEST: Final = 4096  # characters shown of a path; the attributes hold all of it


class CheckpointError(Exception):
    """Something that ckptmgr was asked to do and could not do.

    Attributes:
      message: the sentence without its context.
      step: the training step it is about, if any.
      leaf: the key path of the leaf it is about, as text, if any.
      file: the file or directory it is about, if any.
      process: the index of the process that failed, if it was not this one.
    """

    def __init__(
        self,
        message: str,
        *,
        step: int | None = None,
        leaf: str | None = None,
        file: object | None = None,
        process: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.step = step
        self.leaf = leaf
        self.file = None if file is None else str(file)
        self.process = process

    def __str__(self) -> str:
        """The message, then in brackets what it is about; printable, whatever a file said."""
        about = [
            f"{name} {_shortened(value)!r}" if isinstance(value, str) else f"{name} {value}"
            for name, value in (
                ("step", self.step),
                ("leaf", self.leaf),
                ("file", self.file),
                ("process", self.process),
            )
            if value is not None
        ]
        return printable(f"{self.message} [{', '.join(about)}]" if about else self.message)


def printable(text: str) -> str:
    """The text with what a terminal would obey, or hide, written out."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in text
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"


class InvalidOption(CheckpointError, ValueError):
    """An argument has a value that it cannot have; the text lists what it can be."""


class InvalidStep(CheckpointError, ValueError):
    """A step is negative or too large."""


class NotAStep(CheckpointError, TypeError):
    """Something that is no integer, a tree for instance, was given as a step."""


class UnsupportedLeaf(CheckpointError, TypeError):
    """A leaf, a container or a dict key that cannot be stored; nothing was written."""


class UndecodableLeaf(CheckpointError):
    """The bytes are those that were saved, but a handler or a registered class refuses them."""


class TreeMismatch(CheckpointError, ValueError):
    """The saved tree and the one asked for differ; the text lists every difference."""


class MsgpackError(CheckpointError, ValueError):
    """A tree that the msgpack wire format cannot hold, or bytes that are none of it."""


class StepExists(CheckpointError):
    """The step is committed or queued already; `overwrite=True` replaces it."""


class StepHeld(CheckpointError):
    """Somebody reads, holds or replaces the step now, so it is neither deleted nor replaced."""


class StepDeleted(CheckpointError, LookupError):
    """The step was deleted, or replaced, before it could be held or while it was read."""


class NoSuchStep(CheckpointError, LookupError):
    """There is no committed step of that description."""


class DamagedStep(CheckpointError):
    """Bytes on disk are not those that were saved: a file is missing, cut or altered."""


class Exhausted(CheckpointError):
    """This process has not got the means. It says nothing against the step."""


class OutOfMemory(Exhausted, MemoryError):
    """There is not the memory for an array; the text says how to load less."""


class TooManyOpenFiles(Exhausted):
    """This process, or the system, has no descriptor left."""


class UnsupportedFormat(CheckpointError):
    """The checkpoint was written in a format that this version does not read."""


class StorageError(CheckpointError):
    """The file system or object store refused or failed; its own error is `__cause__`."""


class StoreUnavailable(Exhausted, StorageError):
    """The object store did not answer, or refused; that says nothing against a step."""


class AccessDenied(StoreUnavailable):
    """The object store does not let these credentials do that."""


class NoSpace(StorageError):
    """There is not enough room for the step."""


class MissingFile(StorageError):
    """A file that should be there is not."""


class NoFile(StorageError):
    """What lies in the place of a file is none: a link, a directory, a device. It is not read."""


class TruncatedFile(StorageError):
    """A file is not as long as it should be."""


class DirectoryLocked(CheckpointError):
    """Another live manager writes this directory; the text names its host and process."""


class ManagerClosed(CheckpointError):
    """The manager was closed, or lives in another process than this forked child."""


FORKED: Final = "this manager belongs to the parent process; open one of your own"


class WaitTimeout(CheckpointError, TimeoutError):
    """A wait ended before what it waited for was done; the work goes on where it can."""


class ProcessesDiffer(CheckpointError, ValueError):
    """The processes gave different trees, leaves, steps or directories; nothing was written."""


class ProcessSilent(CheckpointError, TimeoutError):
    """A process did not come along within the coordinator's timeout; the text names it."""


class EarlierSaveFailed(CheckpointError):
    """A save made earlier failed and nobody had looked at its future.

    Attributes:
      future: the future of the save whose call raised this, queued before it was
        raised and not lost; None where `wait()` or `close()` raised it.
    """

    def __init__(
        self, message: str, *, step: int | None = None, future: Future[Any] | None = None
    ) -> None:
        super().__init__(message, step=step)
        self.future = future
