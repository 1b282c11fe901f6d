"""The msgpack wire format: what flax and Orbax write we read, and the other way round."""

from __future__ import annotations

import contextlib
import copy
import importlib
import struct
from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import pytest
from flax import serialization as flax
from hypothesis import given
from hypothesis import strategies as st

from ckptmgr import CheckpointError, MsgpackError
from ckptmgr.format import msgpack as ours
from tests.trees import Pair, assert_same

orbax = importlib.import_module("orbax.checkpoint.msgpack_utils")
THEIRS = {"flax": flax, "orbax": orbax}
# Neither of them reads back all of ml_dtypes.
DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"]

plain = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False),
    st.text(), st.binary(), st.complex_numbers(allow_nan=False),
)  # fmt: skip


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Arrays and scalars of numpy, and jax arrays."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, shape)
    array = np.asarray(values).astype(draw(st.sampled_from(DTYPES)))
    kind = draw(st.sampled_from(["numpy", "jax", "scalar"]))
    if kind == "scalar":
        return array.dtype.type(1)
    return jnp.asarray(array) if kind == "jax" and array.dtype.itemsize < 8 else array


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Dicts and lists."""
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )


def on_host(tree: Any) -> Any:
    """As it comes back: no jax arrays."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, tree)


@pytest.mark.parametrize("library", sorted(THEIRS))
@given(tree=trees(plain | arrays()))
def test_what_they_write_we_write_and_each_reads_the_other(library: str, tree: Any) -> None:
    """Byte for byte."""
    theirs = THEIRS[library]
    data = ours.serialize(tree)
    assert data == theirs.msgpack_serialize(tree)
    assert ours.serialize(tree, in_place=True) == theirs.msgpack_serialize(
        copy.deepcopy(tree), in_place=True
    )
    assert_same(ours.restore(data), on_host(tree))
    assert_same(theirs.msgpack_restore(data), on_host(tree))


@given(tree=st.recursive(plain, lambda inner: st.lists(inner, max_size=3).map(tuple)))
def test_tuples_are_as_orbax_writes_them(tree: Any) -> None:
    """Flax has none."""
    data = ours.serialize(tree)
    assert data == orbax.msgpack_serialize(tree)
    assert_same(ours.restore(data), tree)
    assert_same(orbax.msgpack_restore(data), tree)


@pytest.mark.parametrize(
    ("tree", "data"),
    [
        (
            {"a": np.arange(2, dtype=np.int32)},
            "81a161c71301939102a5696e743332c4080000000001000000",
        ),
        (jnp.ones((1,), jnp.bfloat16), "d801939101a862666c6f61743136c402803f"),
        (np.float32(1.5), "d8039390a7666c6f61743332c4040000c03f"),
        ((1, 2.5), "c70b049201cb4004000000000000"),
    ],
)
def test_known_bytes(tree: Any, data: str) -> None:
    """Taken from both libraries."""
    assert ours.serialize(tree).hex() == data
    assert_same(ours.restore(bytes.fromhex(data)), on_host(tree))


@pytest.mark.parametrize("library", sorted(THEIRS))
def test_large_arrays_are_cut_in_dicts_as_theirs_are(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the threshold lowered from 2**30 bytes; in lists they stay whole, as theirs do."""
    theirs = THEIRS[library]
    module = importlib.import_module(theirs.msgpack_serialize.__module__)
    monkeypatch.setattr(module, "MAX_CHUNK_SIZE", 100)
    monkeypatch.setattr(ours, "LARGEST_ARRAY", 100)
    big = np.arange(60, dtype=np.float32).reshape(4, 15)
    for tree in (big, {"a": {"b": big, "c": big[:1]}}, {"l": [big]}, {"j": jnp.asarray(big)}):
        data = ours.serialize(tree)
        assert data == theirs.msgpack_serialize(tree)
        assert_same(ours.restore(data), on_host(tree))
        assert_same(theirs.msgpack_restore(data), on_host(tree))
    assert b"__msgpack_chunked_array__" in ours.serialize({"a": big})
    assert b"__msgpack_chunked_array__" not in ours.serialize([big])


@pytest.mark.parametrize("in_place", [False, True])
def test_the_tree_is_never_changed(*, in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where it is allowed."""
    monkeypatch.setattr(ours, "LARGEST_ARRAY", 100)
    big, inner = np.zeros(200, np.uint8), [1]
    tree: dict[str, Any] = {"b": big, "a": {"x": jnp.ones(99), "l": inner}}
    before = (list(tree), list(tree["a"]), tree["a"]["x"])
    ours.serialize(tree, in_place=in_place)
    assert (list(tree), list(tree["a"]), tree["a"]["x"]) == before
    assert tree["b"] is big
    assert tree["a"]["l"] is inner


@pytest.mark.parametrize(
    "leaf",
    [
        *(np.ones(3, np.dtype(getattr(ml_dtypes, name))) for name in ("float8_e4m3fn", "int4")),
        np.array(["2020-01-01"], "M8[ms]"),
        np.ones(2, np.longdouble),
        ml_dtypes.bfloat16(2),
    ],
    ids=str,
)
def test_dtypes_that_they_do_not_all_read_come_back_here(leaf: Any) -> None:
    """Dtype and bits."""
    assert_same(ours.restore(ours.serialize([leaf])), [leaf])


def test_big_endian_arrays_are_converted() -> None:
    """There they come back as other numbers."""
    data = ours.serialize(np.array([1, 2], ">i4"))
    assert data == ours.serialize(np.array([1, 2], "<i4"))


def test_int_keys_come_back() -> None:
    """And other keys that msgpack can hold."""
    tree = {1: {"a": 2}, 3: {None: 1}}
    assert ours.restore(ours.serialize(tree)) == tree


def test_arrays_are_writable_on_request() -> None:
    """Else they are views of what was read."""
    data = ours.serialize({"a": np.zeros(2)})
    assert not ours.restore(data)["a"].flags.writeable
    assert ours.restore(data, writable=True)["a"].flags.writeable


class MyInt(int):
    """A subclass that would come back as its base."""


@pytest.mark.parametrize(
    ("leaf", "why"),
    [
        (print, "builtin_function"),
        (np.array(["a"]), "dtype"),
        (np.array([object()]), "dtype object"),
        (np.zeros(2, [("a", "i4")]), "dtype"),
        (np.ma.masked_array([1]), "MaskedArray"),
        (np.str_("a"), "dtype"),
        (jax.random.key(0), "dtype key"),
        (MyInt(1), "MyInt"),
        (OrderedDict(a=1), "OrderedDict"),
        (Pair(1, 2), "Pair"),
        ({1j: 1}, "key is"),
        ({(1, 2): 1}, "key is"),
        ({1: 1, "a": 2}, "no order"),
        ({"__msgpack_chunked_array__": 1}, "own"),
    ],
    ids=str,
)
def test_what_would_come_back_as_something_else_is_refused(leaf: Any, why: str) -> None:
    """With its path."""
    with pytest.raises(MsgpackError, match=why) as caught:
        ours.serialize({"x": [leaf]})
    assert str(caught.value.leaf).startswith("x/0")


def deep_list(depth: int) -> Any:
    """Lists in lists."""
    tree: Any = 1
    for _ in range(depth):
        tree = [tree]
    return tree


@pytest.mark.parametrize("leaf", [2**64, -(2**63) - 1, "\ud800", deep_list(600), deep_list(10**5)])
def test_what_msgpack_cannot_hold_is_refused(leaf: Any) -> None:
    """Before anything is returned."""
    with pytest.raises(MsgpackError):
        ours.serialize({"x": leaf})


def ext(code: int, *content: object) -> bytes:
    """An extension of any content."""
    packed: bytes = msgpack.packb(msgpack.ExtType(code, msgpack.packb(content)))
    return packed


def nested_tuples(depth: int) -> bytes:
    """Tuples in tuples, beyond what msgpack's own limit sees."""
    data: bytes = msgpack.packb([])
    for _ in range(depth):
        data = msgpack.packb([msgpack.ExtType(4, data)])
    return data


def cut(shape: object, chunks: object, **more: object) -> bytes:
    """An array that claims to have been cut."""
    tree = {"__msgpack_chunked_array__": True, "shape": shape, "chunks": chunks, **more}
    data: bytes = msgpack.packb(tree, default=lambda a: msgpack.ExtType(1, array_content(a)))
    return data


def array_content(array: np.ndarray) -> bytes:
    """An array as it lies inside its extension."""
    data: bytes = msgpack.packb((array.shape, array.dtype.name, array.tobytes()))
    return data


ONES = np.ones(2, np.uint8)
HOSTILE = {
    "empty": b"",
    "never used": b"\xc1",
    "cut short": ours.serialize({"a": np.arange(9)})[:-1],
    "more after it": ours.serialize(1) + b"\0",
    "lists nested 10**5 deep": b"\x91" * 10**5 + b"\x01",
    "dicts nested 10**5 deep": b"\x81\xa1a" * 10**5 + b"\x01",
    "tuples nested deep": nested_tuples(1000),
    "a list of 2**32 items": b"\xdd\xff\xff\xff\xff",
    "a dict of 2**32 items": b"\xdf\xff\xff\xff\xff",
    "bytes of 4 GiB": b"\xc6\xff\xff\xff\xff",
    "an extension of 4 GiB": b"\xc9\xff\xff\xff\xff\x01",
    "an unknown extension": ext(5, 1),
    "no content": msgpack.packb(msgpack.ExtType(1, b"")),
    "two parts": ext(1, [2], "uint8"),
    "a negative dimension": ext(1, [-1, -2], "uint8", b"ab"),
    "a bool dimension": ext(1, [True], "uint8", b"a"),
    "100 dimensions": ext(1, [1] * 100, "uint8", b"a"),
    "too few bytes": ext(1, [3], "uint8", b"ab"),
    "a huge shape": ext(1, [2**40, 2**40], "uint8", b""),
    "an object dtype": ext(1, [1], "object", b"12345678"),
    "a str dtype": ext(1, [1], "str32", b"1"),
    "a structured dtype": ext(1, [1], "i4,i4", b"12345678"),
    "a short dtype name": ext(1, [1], "f4", b"1234"),
    "a dtype that is code": ext(1, [1], "__import__('os')", b"1"),
    "a dtype that is no ascii": ext(1, [1], b"\xff\xfe", b"1"),
    "a scalar with a shape": ext(3, [1], "uint8", b"a"),
    "half a complex number": ext(2, 1.0),
    "a complex number of text": ext(2, "a", "b"),
    "a tuple that is no list": msgpack.packb(msgpack.ExtType(4, msgpack.packb({"a": 1}))),
    "an array as key": msgpack.packb({1: 1})[:1] + ext(1, [1], "uint8", b"a") + b"\x01",
    "text that is no utf-8": b"\xa1\xff",
    "cut, more parts": cut({"0": 2}, {"0": ONES}, more=1),
    "cut, shape a list": cut([2], {"0": ONES}),
    "cut, wrong numbers": cut({"0": 2}, {"1": ONES}),
    "cut, shape negative": cut({"0": -2}, {"0": ONES}),
    "cut, no chunks": cut({"0": 0}, {}),
    "cut, chunks of text": cut({"0": 2}, {"0": "ab"}),
    "cut, chunks of two dtypes": cut({"0": 4}, {"0": ONES, "1": ONES.view(np.int8)}),
    "cut, too little": cut({"0": 3}, {"0": ONES}),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_tree_is_one_error(data: bytes) -> None:
    """A ValueError of ours, whatever was in the bytes."""
    with pytest.raises(MsgpackError) as caught:
        ours.restore(data)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, CheckpointError)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_tree_or_an_error(data: bytes) -> None:
    """Nothing else comes out."""
    with contextlib.suppress(MsgpackError):
        ours.restore(data)


@given(st.data())
def test_a_damaged_message_is_a_tree_or_an_error(data: st.DataObject) -> None:
    """Any byte changed to any other."""
    message = bytearray(ours.serialize({"a": [np.arange(3), (1, 2j)], "b": np.float32(1)}))
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MsgpackError):
        ours.restore(bytes(message))


def test_a_nan_keeps_its_bits() -> None:
    """In arrays and scalars."""
    nan = np.frombuffer(struct.pack("<I", 0x7FC0BEEF), np.float32)
    assert ours.restore(ours.serialize(nan)).tobytes() == nan.tobytes()
    assert ours.restore(ours.serialize(nan[0])).tobytes() == nan.tobytes()
