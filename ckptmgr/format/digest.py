"""Digests: what proves that the bytes read are the bytes saved.

xxh3-128 stands in the manifest and is checked by every read of ours; crc32c stands
behind each chunk, as Zarr's codec of that name wants it, for foreign readers. Both
release the GIL and run at memory speed. They prove integrity, not origin.
"""

from __future__ import annotations

import crc32c as _crc32c
import xxhash


def digest(data: bytes | memoryview) -> str:
    """The xxh3-128 of contiguous bytes as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


class Digest:
    """The digest of bytes that come part by part."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def add(self, part: bytes | memoryview) -> None:
        """The next part."""
        self._hash.update(part)

    def text(self) -> str:
        """What `digest` says of all parts together."""
        return self._hash.hexdigest()


class Checksum:
    """The crc32c of bytes that come part by part, as the 4 bytes that a Zarr chunk ends on.

    https://zarr-specs.readthedocs.io/en/latest/v3/codecs/crc32c/index.html
    """

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value = 0

    def add(self, part: bytes | memoryview) -> None:
        """The next part."""
        self._value = _crc32c.crc32c(part, self._value)

    def stored(self) -> bytes:
        """As it is stored."""
        return self._value.to_bytes(4, "little")
