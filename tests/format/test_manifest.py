"""The commit record and the manifest: what is read is what was written, or an error."""

from __future__ import annotations

import msgspec
import pytest

from ckptmgr import DamagedStep, UnsupportedFormat
from ckptmgr.format import encoding
from ckptmgr.format import manifest as m
from ckptmgr.format.digest import digest
from ckptmgr.format.zarr import Codec

PACK = m.Pack(process=0, nbytes=128, chunk=128)
ARRAY = m.ArrayEntry("float32", (4,), packed=(m.PackedBox(0, 64, "00"),))
LEAF = m.LeafEntry("w", "jax.Array", arrays=(ARRAY,))
MANIFEST = m.Manifest(m.FORMAT, m.DictNode(("w",), (0,)), (LEAF,), (PACK,))


def record_of(data: bytes, **changes: object) -> m.CommitRecord:
    """A record that commits these bytes of a manifest."""
    fields = {
        "format": m.FORMAT, "step": 3, "time": 1.0, "nbytes": 16, "leaves": 1, "nonce": "00",
        "manifest_nbytes": len(data), "manifest_digest": digest(data), "writer": {},
    }  # fmt: skip
    return m.CommitRecord(**{**fields, **changes})  # type: ignore[arg-type]  # by name


def test_a_manifest_comes_back() -> None:
    """Equal in every field."""
    data = encoding.encode_manifest(MANIFEST)
    assert encoding.decode_manifest(data, record_of(data), "tree.json") == MANIFEST


def test_a_record_comes_back() -> None:
    """NaN metrics included."""
    record = record_of(b"", metrics={"loss": {"float": "7ff8000000000000"}})
    assert encoding.decode_record(encoding.encode_record(record), "checkpoint.json") == record


def test_every_flipped_byte_of_a_record_is_found() -> None:
    """By its own digest, or because it does not parse."""
    data = encoding.encode_record(record_of(b""))
    for place in range(len(data) - 1):  # the last is a newline
        wrong = bytearray(data)
        wrong[place] ^= 1
        try:
            found = encoding.decode_record(bytes(wrong), "checkpoint.json")
        except (DamagedStep, UnsupportedFormat):
            continue
        assert found == record_of(b"")


def test_a_manifest_that_was_not_committed_is_refused() -> None:
    """Whole as it may be."""
    data = encoding.encode_manifest(MANIFEST)
    with pytest.raises(DamagedStep, match="not the one that was committed"):
        encoding.decode_manifest(data, record_of(b"other"), "tree.json")


def test_a_newer_format_says_so_even_where_its_fields_are_unknown() -> None:
    """Rather than that it is damaged."""
    data = msgspec.json.encode({"format": 2, "leafs": []})
    with pytest.raises(UnsupportedFormat, match=r"format 2 .* update ckptmgr"):
        encoding.decode_manifest(data, record_of(data), "tree.json")


def parts(*boxes: tuple[tuple[int, int], ...] | None) -> tuple[m.PackedBox, ...]:
    """Parts of the array, one after the other in the pack."""
    return tuple(m.PackedBox(0, 16 * place, "00", box) for place, box in enumerate(boxes))


def test_parts_of_an_array_that_make_it_up_are_accepted() -> None:
    """One that no process held whole: cells of one grid, in any order."""
    whole = bad(shape=(2, 2), packed=parts(((1, 2), (0, 2)), ((0, 1), (0, 2))))
    data = encoding.encode_manifest(whole)
    assert encoding.decode_manifest(data, record_of(data), "tree.json") == whole


def test_what_each_process_had_is_found_and_numbered_anew() -> None:
    """In the order of the nodes."""
    node = m.PerProcessNode((0, m.ListNode((1, 2))))
    tree = m.DictNode(("a", "b"), (node, m.TupleNode((3, m.NoneNode()))))
    assert m.per_process(tree) == [node]
    assert m.leaf_indices(m.renumbered(tree, lambda n: n + 5)) == [5, 6, 7, 8]


def bad(**changes: object) -> m.Manifest:
    """A manifest with another array."""
    array = msgspec.structs.replace(ARRAY, **changes)
    return msgspec.structs.replace(
        MANIFEST, leaves=(m.LeafEntry("w", "jax.Array", arrays=(array,)),)
    )


@pytest.mark.parametrize(
    ("manifest", "fault"),
    [
        (bad(dtype="object"), "unknown dtype"),
        (bad(shape=(-4,)), "impossible shape"),
        (bad(packed=()), "exactly one place"),
        (bad(shape=(10**12,)), "outside its pack"),
        (bad(packed=(m.PackedBox(0, -64, "00"),)), "outside its pack"),
        (bad(packed=(m.PackedBox(1, 0, "00"),)), "outside its pack"),
        (bad(packed=parts(((0, 2),))), "do not make it up"),
        (bad(packed=parts(((0, 2),), ((0, 2),))), "do not make it up"),
        (bad(packed=parts(((0, 2),), ((1, 3),))), "do not make it up"),
        (bad(packed=parts(((0, 2),), ((2, 2),))), "do not make it up"),
        (bad(packed=parts(((2, 4),), ((4, 6),))), "do not make it up"),
        (bad(packed=parts(((0, 3),), ((3, 6),))), "do not make it up"),
        (bad(packed=parts(((-2, 0),), ((0, 2),), ((2, 4),))), "do not make it up"),
        (bad(packed=parts(((0, 4), (0, 1)))), "do not make it up"),
        (bad(packed=parts(None, None)), "do not make it up"),
        (bad(packed=parts(((0, 4),), None)), "do not make it up"),
        (bad(packed=(), grid=m.Grid((0,), ("00",))), "do not fit its shape"),
        (bad(packed=(), grid=m.Grid((2,), ("00",))), "do not match its chunks"),
        (bad(packed=(), grid=m.Grid((2**40,), ("00",))), "do not fit its shape"),
        (bad(shape=(10**400, 1), packed=()), "impossible shape"),
        (bad(shape=(0,) * 100, packed=()), "impossible shape"),
        (bad(packed=(), grid=m.Grid((4,), ("00",), Codec(zstd=10**30))), "level of zstd"),
        (bad(packed=(), grid=m.Grid((4,), ("00",), Codec((3,)))), "inside do not divide"),
        (bad(packed=(), grid=m.Grid((4,), ("00",), Codec((0,)))), "inside do not divide"),
        (bad(packed=(), grid=m.Grid((4,), ("00",), Codec((2, 2)))), "inside do not divide"),
        (
            m.Manifest(m.FORMAT, m.ListNode((0, 1)), (LEAF, LEAF), (PACK,)),
            "two leaves have the same path",
        ),
        (msgspec.structs.replace(MANIFEST, packs=(PACK, PACK)), "two packs"),
        (msgspec.structs.replace(MANIFEST, structure=m.NoneNode()), "each leaf once"),
        (msgspec.structs.replace(MANIFEST, structure=m.ListNode((0, 0))), "each leaf once"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(manifest: m.Manifest, fault: str) -> None:
    """Before any of its numbers is used."""
    data = encoding.encode_manifest(manifest)
    with pytest.raises(DamagedStep, match=fault):
        encoding.decode_manifest(data, record_of(data), "tree.json")


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff", b"[" * 100_000, b'{"format":1,"surprise":2}', b'{"format":"1"}', b"null"],
)
def test_what_is_no_manifest_is_damage_and_nothing_else(data: bytes) -> None:
    """Whatever msgspec says of it."""
    with pytest.raises(DamagedStep):
        encoding.decode_manifest(data, record_of(data), "tree.json")
