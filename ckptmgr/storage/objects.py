"""Objects: TensorStore's key-value stores with conditions, deadlines and errors of ours.

Every call ends by its deadline. A conditional put whose reply was lost looks like a
conflict when it is tried again, so what lies there is read back: every object that is put
on a condition holds a nonce, and what holds ours is ours.
"""

from __future__ import annotations

import functools
import os
import re
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

import tensorstore as ts

from ckptmgr.errors import (
    AccessDenied,
    MissingFile,
    StorageError,
    StoreUnavailable,
    TruncatedFile,
)

T = TypeVar("T")
_OPENING: Final = 10.0  # seconds
_WORDS: Final = re.compile(r"(?:(?P<code>[A-Z_]+): )?(?P<words>.*?)(?: \[[\w.-]+=.*)?", re.DOTALL)
_SECRET: Final = re.compile("SECRET|TOKEN|KEY|CREDENTIAL|PASSWORD")
_SHORTEST: Final = 8  # characters of a secret: what is shorter may be a word
# By what the store says: what it means, and what can be done.
_MEANINGS: Final = {
    "NoSuchBucket": "the bucket does not exist; create it, or correct the name",
    "AccessDenied": "the store denies access; check the credentials and their permissions",
    "PERMISSION_DENIED": "the store denies access; check the credentials and their permissions",
    "UNAUTHENTICATED": "the store does not accept the credentials",
    "InvalidAccessKeyId": "the store does not know these credentials",
    "SignatureDoesNotMatch": "the store does not accept the credentials, or not for this region",
    "AuthorizationHeaderMalformed": "the region is not the bucket's; give it with region=",
    "PermanentRedirect": "the bucket is in another region; give it with region=",
    "Invalid S3 bucket name": "a bucket's name has 3 to 63 characters",
    "Invalid GCS bucket name": "a bucket's name has 3 to 63 characters",
}
_DENIED: Final = ("AccessDenied", "PERMISSION_DENIED")


class Object(NamedTuple):
    """What lies at a key, and which generation of it that is."""

    data: bytes
    generation: bytes


@functools.cache
def absent() -> bytes:
    """The generation of a key where nothing is."""
    store = ts.KvStore.open({"driver": "memory"}).result()
    return bytes(store.read("x").result().stamp.generation)


class Objects:
    """The objects below one prefix of a bucket. Calls block; any thread may make them.

    Args:
      spec: TensorStore's description of it, without credentials.
      root: what it is called in errors.
      deadline: the seconds that a call may take.
    """

    def __init__(self, spec: dict[str, Any], root: str, deadline: float) -> None:
        self.root = root
        self.deadline = deadline
        self._spec = spec
        self._opening = threading.Lock()
        self._opened: Any = None  # TensorStore's KvStore, whose futures have no types

    def get(self, key: str) -> Object | None:
        """The object at a key, or None."""
        found = self._wait(self._store().read(key), key)
        if found.state != "value":
            return None
        return Object(bytes(found.value), bytes(found.stamp.generation))

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """A part of an object.

        Raises:
          MissingFile: it is not there.
          TruncatedFile: it ends before `stop`.
        """
        found = self._wait(self._store().read(key, byte_range=slice(start, stop)), key)
        if found.state != "value":
            raise MissingFile("this object is missing", file=f"{self.root}/{key}")
        data = bytes(found.value)
        if len(data) != stop - start:
            raise StorageError("the store does not honour ranges", file=f"{self.root}/{key}")
        return data

    def put(
        self, key: str, data: bytes, *, only: bytes | None = None, seconds: float | None = None
    ) -> bytes | None:
        """Store an object, durable on return; its generation.

        `only`: where the key is of this generation; else None, unless what is there is `data`.
        """
        end = time.monotonic() + (self.deadline if seconds is None else seconds)
        stamp = self._write(key, data, only, end)
        if stamp or only is None:
            return stamp
        there = self.get(key)
        if there is not None and there.data == data:
            return there.generation
        return self._write(key, data, None, end) if _holds(there, only) else None

    def race(self, key: str, data: Sequence[bytes], only: bytes) -> int:
        """Put all of these at once on one condition; how many of them the store has taken.

        Raises:
          StoreUnavailable: it took none, and failed one.
        """
        taken, failure = 0, None
        for write in [self._store().write(key, one, if_equal=only) for one in data]:
            try:
                taken += bool(bytes(self._wait(write, key).generation))
            except StoreUnavailable as error:  # Amazon's may tell those that meet to try again
                failure = error
        if not taken and failure is not None:
            raise failure
        return taken

    def delete(self, key: str, *, only: bytes | None = None, seconds: float | None = None) -> bool:
        """Remove an object, if it is of this generation; whether nothing is there now."""
        end = time.monotonic() + (self.deadline if seconds is None else seconds)
        if self._write(key, None, only, end) or only is None:
            return True
        there = self.get(key)
        return there is None or (_holds(there, only) and bool(self._write(key, None, None, end)))

    def _write(self, key: str, data: bytes | None, only: bytes | None, end: float) -> bytes:
        """One write; empty where the condition does not hold, or so the store says.

        Not begun after `end`, as nobody can take back what the store was asked for.
        """
        left = end - time.monotonic()
        if left <= 0:
            raise StoreUnavailable("there was no time left to write", file=f"{self.root}/{key}")
        return bytes(
            self._wait(self._store().write(key, data, if_equal=only), key, left).generation
        )

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin so, sorted."""
        listing = self._store().list(ts.KvStore.KeyRange(prefix, _after(prefix)))
        return sorted(key.decode(errors="replace") for key in self._wait(listing, prefix))

    def delete_all(self, prefix: str) -> None:
        """Remove every object below a prefix that ends on a slash, many at a time."""
        keys = self.keys(prefix)
        deletions = [self._store().write(key, None) for key in keys]
        for key, deletion in zip(keys, deletions, strict=True):
            self._wait(deletion, key)

    def _store(self) -> Any:
        with self._opening:
            if self._opened is None:
                self._opened = self._opening_store()
            return self._opened

    def _opening_store(self) -> Any:
        try:
            opening = ts.KvStore.open(self._spec)
        except Exception as error:  # noqa: BLE001  # of many classes; it is told as one of ours
            said = _scrubbed(error)
        else:
            return self._wait(opening, "", _OPENING)
        raise _translated(said, self.root) from said  # here, as no secret is this one's context

    def _wait(self, future: Any, key: str, seconds: float | None = None) -> Any:
        """The result of a call, or its error as one of ours."""
        file = f"{self.root}/{key}" if key else self.root
        limit = self.deadline if seconds is None else max(seconds, 0.0)
        try:
            return future.result(timeout=limit)
        except TimeoutError as error:
            future.cancel()
            raise StoreUnavailable(
                f"the store did not answer within {limit:.0f} s; look at the network, or give it "
                "longer with deadline=",
                file=file,
            ) from error
        except Exception as error:  # noqa: BLE001  # of many classes; it is told as one of ours
            said = _scrubbed(error)
        except BaseException:
            future.cancel()
            raise
        raise _translated(said, file) from said


def _holds(there: Object | None, only: bytes) -> bool:
    """Whether a condition that was refused holds after all: then it was looked at here instead.

    Ceph refuses all on what is there, as it compares tags without their quotes. Between the
    look and the write another could come in; of those that keep to leases and holds none does,
    and what is new is put by create-only puts, which Ceph honours.
    https://github.com/google/tensorstore/issues/226
    """
    return there is not None and there.generation == only


def _after(prefix: str) -> bytes:
    """The first key after all that begin so."""
    data = prefix.encode()
    return data[:-1] + bytes([data[-1] + 1]) if data else b""


def _translated(error: ValueError, file: str) -> StorageError:
    """TensorStore's error as one of ours, with the store's own words."""
    text = str(error)
    match = _WORDS.fullmatch(text)
    assert match is not None, "it matches everything"
    code, words = match["code"] or "", match["words"].strip()
    if code == "OUT_OF_RANGE":
        return TruncatedFile(f"it ends before what is to be read: {words}", file=file)
    for said, meaning in _MEANINGS.items():
        if said in text:
            kind = AccessDenied if said in _DENIED else StoreUnavailable
            return kind(f"{meaning} ({words})", file=file)
    return StoreUnavailable(f"the store failed: {words or code}", file=file)


def _scrubbed(error: Exception) -> ValueError:
    """The error without secrets, which a store may repeat."""
    text = str(error)
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and _SECRET.search(name.upper()):
            text = text.replace(value, "***")
    return ValueError(text)
