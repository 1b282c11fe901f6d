"""The pack: small arrays end to end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckptmgr.pipeline import pack as packing

MIB = 1 << 20


@given(st.lists(st.integers(1, 3 * MIB), max_size=60))
def test_a_pack_is_aligned_in_order_without_overlap_and_no_leaf_crosses_a_chunk(
    sizes: list[int],
) -> None:
    """And wastes at most one leaf a chunk."""
    pack, offsets = packing.fill(sizes)
    if pack is None:
        assert sizes == []
        return
    assert all(offset % 64 == 0 for offset in offsets)
    ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
    assert all(end <= start for end, start in zip(ends, offsets[1:], strict=False))
    assert all(
        offset // pack.chunk == (end - 1) // pack.chunk
        for offset, end in zip(offsets, ends, strict=True)
    )
    assert ends[-1] <= pack.nbytes
    padded = sum(-(-size // 64) * 64 for size in sizes)
    chunks = -(-pack.nbytes // pack.chunk)
    assert pack.nbytes <= padded + chunks * (max(sizes) + 64)
    files = packing.files(pack, offsets, sizes, 7)
    spans = [span for file in files for span in file.spans]
    assert [stop - start for start, stop in spans] == sizes
    assert [file.slot for file in files] == [
        7 + sum(len(f.spans) for f in files[:n]) for n in range(len(files))
    ]
