"""The key-value store that the processes of a job share, and jax.distributed's, behind one door.

jax has no public way to its store, so this is the only file that uses the private one.
Its barriers are not used: a round of messages says who is missing, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax

from ckptmgr.errors import CheckpointError, InvalidOption


class Client(Protocol):
    """A store of small values that every process of a job reaches, from any thread.

    Attributes:
      index, count: which process this is, of how many.
    """

    index: int
    count: int

    def put(self, key: str, value: bytes) -> None:
        """Store a value, in the place of a former one."""

    def get(self, key: str, seconds: float) -> bytes | None:
        """A value, waited for that long at the most; None where there is none by then."""

    def delete(self, key: str) -> None:
        """Remove a value, if it is there."""


class JaxClient:
    """The store of jax.distributed.

    Raises:
      InvalidOption: jax.distributed was not initialised.
    """

    def __init__(self) -> None:
        self.index = jax.process_index()
        self.count = jax.process_count()
        self._store = _store()

    def put(self, key: str, value: bytes) -> None:
        """0.1 ms on one machine."""
        try:
            self._store.key_value_set_bytes(key, value, allow_overwrite=True)
        except jax.errors.JaxRuntimeError as error:
            raise _lost(error) from error

    def get(self, key: str, seconds: float) -> bytes | None:
        """Blocks without the interpreter's lock."""
        wait = int(seconds * 1000)
        if wait > 0:
            found = self._found(lambda: self._store.blocking_key_value_get_bytes(key, wait))
            if found is not None:
                return found
        # The wait counts the way of the value too, and a large one takes its time.
        return self._found(lambda: self._store.key_value_try_get_bytes(key))

    def _found(self, get: Callable[[], bytes]) -> bytes | None:
        try:
            return get()
        except jax.errors.JaxRuntimeError as error:
            if any(code in str(error) for code in ("DEADLINE_EXCEEDED", "NOT_FOUND")):
                return None
            raise _lost(error) from error

    def delete(self, key: str) -> None:
        """A key that is not there is none of its errors."""
        try:
            self._store.key_value_delete(key)
        except jax.errors.JaxRuntimeError as error:
            raise _lost(error) from error


def _store() -> Any:  # jaxlib's client, which has no stubs
    from jax._src import distributed  # noqa: PLC0415  # private: only where it is needed

    store = distributed.global_state.client
    if store is None:
        raise InvalidOption(
            f"there are {jax.process_count()} processes and jax.distributed is not initialised: "
            "call jax.distributed.initialize() before anything else"
        )
    return store


def _lost(error: Exception) -> CheckpointError:
    return CheckpointError(f"the key-value store of jax.distributed does not answer: {error}")
