"""Digests and checksums."""

from __future__ import annotations

import google_crc32c
import pytest

from ckptmgr.format.digest import chunk_checksum, digest


def test_a_digest_is_xxh3_128_in_hex() -> None:
    """The value that the reference implementation gives for no bytes."""
    assert digest(b"") == "99aa06d3014798d86001c324468d497f"


def test_one_flipped_bit_changes_the_digest() -> None:
    """And so do swapped halves."""
    data = bytes(range(256))
    assert len({digest(data), digest(b"\x01" + data[1:]), digest(data[128:] + data[:128])}) == 3


@pytest.mark.parametrize("padding", [0, 1, 3_000_000])
def test_the_checksum_covers_the_padding_and_agrees_with_another_library(padding: int) -> None:
    """Zarr readers check the whole stored chunk."""
    expected = google_crc32c.value(b"data" + bytes(padding))
    assert chunk_checksum(b"data", padding) == expected.to_bytes(4, "little")
