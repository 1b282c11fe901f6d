"""Digests and checksums."""

from __future__ import annotations

import google_crc32c
import pytest

from ckptmgr.format.digest import Checksum, Digest, digest


def test_a_digest_is_xxh3_128_in_hex() -> None:
    """The value that the reference implementation gives for no bytes."""
    assert digest(b"") == "99aa06d3014798d86001c324468d497f"


def test_one_flipped_bit_changes_the_digest() -> None:
    """And so do swapped halves."""
    data = bytes(range(256))
    assert len({digest(data), digest(b"\x01" + data[1:]), digest(data[128:] + data[:128])}) == 3


@pytest.mark.parametrize(
    "parts", [[b""], [b"data"], [b"da", b"", b"ta"], [b"data", bytes(3_000_000)]]
)
def test_parts_prove_what_the_whole_does(parts: list[bytes]) -> None:
    """Their digest, and their checksum as another library has it."""
    found, checksum = Digest(), Checksum()
    for part in parts:
        found.add(part)
        checksum.add(part)
    whole = b"".join(parts)
    assert found.text() == digest(whole)
    assert checksum.stored() == google_crc32c.value(whole).to_bytes(4, "little")
