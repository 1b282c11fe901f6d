"""Digests: what proves that the bytes read are the bytes saved.

xxh3-128 stands in the manifest and is checked by every read of ours; crc32c stands
behind each chunk, as Zarr's codec of that name wants it, for foreign readers. Both
release the GIL and run at memory speed. They prove integrity, not origin.
"""

from __future__ import annotations

import crc32c as _crc32c
import xxhash

ZEROS = bytes(1 << 20)


def digest(data: bytes | memoryview) -> str:
    """The xxh3-128 of contiguous bytes as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def chunk_checksum(data: bytes | memoryview, padding: int) -> bytes:
    """The crc32c of `data` followed by `padding` zero bytes, as the 4 bytes a Zarr chunk ends on.

    https://zarr-specs.readthedocs.io/en/latest/v3/codecs/crc32c/index.html
    """
    value = _crc32c.crc32c(data)
    while padding > 0:
        value = _crc32c.crc32c(ZEROS[:padding], value)
        padding -= len(ZEROS)
    return value.to_bytes(4, "little")
