"""The msgpack wire format of flax and Orbax, written and read byte for byte as they do.

Trees of dict, list, tuple, None, bool, int, float, complex, str, bytes, and arrays and
scalars of numbers; extension types 1 to 4 are arrays, complex numbers, numpy scalars
and tuples. What the format would bring back as something else is refused, and nothing
that is read is believed before it has been checked.
https://github.com/google/flax/blob/main/flax/serialization.py
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np

from ckptmgr.errors import MsgpackError
from ckptmgr.format import keypath
from ckptmgr.format.zarr import DTYPES

LARGEST_ARRAY: Final = 2**30  # bytes; larger ones are cut, as theirs are
_ARRAY, _COMPLEX, _SCALAR, _TUPLE = 1, 2, 3, 4
_CHUNKED: Final = "__msgpack_chunked_array__"
_DEEPEST: Final = 128  # tuples in tuples: each is a message of its own inside the other
_AMPLIFIED: Final = 16  # how many times the bytes of a message those inside it may be, all told
_MOST_AXES: Final = 64  # numpy's own limit
_LONGEST_NAME: Final = 32
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, bytearray)
_KEYS: Final = (type(None), bool, int, float, str, bytes)


def serialize(tree: object, in_place: bool = False) -> bytes:  # noqa: FBT001, FBT002  # their signature
    """The bytes of a tree, equal to those that flax and Orbax make.

    Args:
      tree: dicts, lists and tuples of numbers, str, bytes, and jax or numpy arrays. It is
        never changed.
      in_place: keep the order of the keys of dicts; else they are sorted, as by jax.

    Arrays above 2**30 bytes are cut where they lie in dicts alone; elsewhere neither
    library would put them together again, and msgpack ends at 4 GiB. A bytearray comes
    back as bytes.

    Raises:
      MsgpackError: the format cannot hold something in the tree; names its path.
    """
    return _packed(_ready(tree, _Place(), ordered=in_place))


def restore(data: bytes, *, writable: bool = False) -> Any:  # a tree of whatever was written
    """The tree in these bytes, written by `serialize`, flax or Orbax.

    Args:
      data: the bytes.
      writable: copy each array so that it can be written to; else they are read-only
        views of memory of their own.

    Raises:
      MsgpackError: these are not the bytes of a tree. Bounded in memory and time.
    """
    try:
        tree = _Unpacker(writable=writable).unpack(data)
        return _joined(tree)
    except MsgpackError:
        raise
    except (ValueError, TypeError, RecursionError, OverflowError, MemoryError) as error:
        raise MsgpackError(f"these are not the bytes of a tree: {error!r}") from error


# Writing


class _Place(NamedTuple):
    """Where in the tree a value lies: its path, whether in dicts alone, in how many tuples."""

    path: tuple[object, ...] = ()
    in_dicts: bool = True
    tuples: int = 0

    @property
    def leaf(self) -> str:
        """The path as text."""
        return keypath.join(self.path)

    def below(self, key: object, kind: type) -> _Place:
        """The place of an item of a container of this kind."""
        in_dicts = self.in_dicts and kind is dict
        return _Place((*self.path, key), in_dicts, self.tuples + (kind is tuple))


def _ready(value: object, place: _Place, *, ordered: bool) -> object:
    """The value with its containers checked and copied, and large arrays cut."""
    kind = type(value)
    if place.tuples > _DEEPEST:
        raise MsgpackError(f"tuples are nested more than {_DEEPEST} deep", leaf=place.leaf)
    try:
        if isinstance(value, dict) and kind is dict:
            return {
                _key(key, place): _ready(value[key], place.below(key, kind), ordered=ordered)
                for key in (value if ordered else sorted(value))
            }
        if isinstance(value, list | tuple) and kind in (list, tuple):
            return kind(
                _ready(item, place.below(number, kind), ordered=ordered)
                for number, item in enumerate(value)
            )
    except TypeError as error:
        raise MsgpackError(f"the keys have no order: {error}", leaf=place.leaf) from error
    except RecursionError as error:
        raise MsgpackError("the tree is nested too deep") from error
    if kind in _PLAIN:
        return _checked(value, place)
    array = _host(value, place)
    return _cut(array) if place.in_dicts and array.nbytes > LARGEST_ARRAY else value


def _checked(value: object, place: _Place) -> object:
    """A plain value, refused where msgpack has no room for it."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise MsgpackError(f"msgpack holds ints of 64 bits, not {value:#x}", leaf=place.leaf)
    if isinstance(value, str) and value.encode(errors="replace").decode() != value:
        raise MsgpackError("msgpack holds text that is Unicode", leaf=place.leaf)
    return value


def _key(key: object, place: _Place) -> object:
    if type(key) not in _KEYS:
        raise MsgpackError(f"a key is str, bytes, a number or None, not {key!r}", leaf=place.leaf)
    if key == _CHUNKED:
        raise MsgpackError(f"the key {key!r} is the format's own", leaf=place.leaf)
    return key


def _host(value: Any, place: _Place) -> np.ndarray:
    """A jax or numpy array, or numpy scalar, as a numpy array in the machine's byte order."""
    kind, leaf = type(value), place.leaf
    if not getattr(value, "is_fully_addressable", True):
        raise MsgpackError("this array lies on devices of other processes too", leaf=leaf)
    own = kind is np.ndarray or hasattr(value, "addressable_shards")
    if not own and not (isinstance(value, np.generic) and value.dtype.type is kind):
        raise MsgpackError(
            f"a {kind.__module__}.{kind.__qualname__} would not come back as one", leaf=leaf
        )
    try:
        array = np.asarray(value)
        _dtype(array.dtype.name)
    except (TypeError, MsgpackError) as error:
        raise MsgpackError(f"dtype {value.dtype} is not stored", leaf=leaf) from error
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _cut(array: np.ndarray) -> dict[str, object]:
    """A large array as a dict of flat parts."""
    flat = array.reshape(-1)
    step = max(1, LARGEST_ARRAY // array.dtype.itemsize)
    parts = (flat[start : start + step] for start in range(0, flat.size, step))
    return {
        _CHUNKED: True,
        "shape": {str(axis): n for axis, n in enumerate(array.shape)},
        "chunks": {str(number): part for number, part in enumerate(parts)},
    }


def _packed(value: object) -> bytes:
    try:
        data: bytes = msgpack.packb(value, default=_extension, strict_types=True)
    except MsgpackError:
        raise
    except (ValueError, OverflowError, TypeError, RecursionError, struct.error) as error:
        raise MsgpackError(
            f"msgpack cannot hold this: {error!r}; it takes text that is Unicode, 4 GiB in one "
            "array of a list or tuple (in a dict it would be cut), and some 500 levels"
        ) from error
    return data


def _extension(value: Any) -> msgpack.ExtType:
    if isinstance(value, complex) and type(value) is complex:
        return msgpack.ExtType(_COMPLEX, msgpack.packb((value.real, value.imag)))
    if isinstance(value, tuple):
        return msgpack.ExtType(_TUPLE, _packed(list(value)))
    array = _host(value, _Place())
    content = (array.shape, array.dtype.name, array.tobytes("C"))
    return msgpack.ExtType(
        _SCALAR if isinstance(value, np.generic) else _ARRAY, msgpack.packb(content)
    )


# Reading


class _Unpacker:
    """Unpacks a message, and the messages inside its extensions."""

    def __init__(self, *, writable: bool) -> None:
        self._writable = writable
        self._depth = 0
        self._budget = 0

    def unpack(self, data: bytes) -> Any:
        """The value; lengths that are claimed and not there are refused by msgpack."""
        if not self._depth:
            self._budget = _AMPLIFIED * (len(data) + (1 << 20))
        return msgpack.unpackb(data, ext_hook=self._extension, raw=False, strict_map_key=False)

    def _extension(self, code: int, data: bytes) -> object:
        if code == _ARRAY:
            return self._array(data)
        if code == _SCALAR:
            array = self._array(data)
            if array.shape:
                raise MsgpackError(f"a scalar has the shape {array.shape}")
            return array[()]
        if code == _COMPLEX:
            parts = msgpack.unpackb(data)
            if not isinstance(parts, list) or [type(part) for part in parts] != [float, float]:
                raise MsgpackError("a complex number is two floats")
            return complex(*parts)
        if code == _TUPLE:
            return self._tuple(data)
        raise MsgpackError(f"extension type {code} is not known")

    def _tuple(self, data: bytes) -> object:
        self._budget -= len(data)
        if self._depth == _DEEPEST or self._budget < 0:
            raise MsgpackError(f"tuples are nested more than {_DEEPEST} deep, or too much in them")
        self._depth += 1
        items = self.unpack(data)
        self._depth -= 1
        if not isinstance(items, list):
            raise MsgpackError("a tuple is a list of its items")
        return tuple(items)

    def _array(self, data: bytes) -> np.ndarray:
        content = msgpack.unpackb(data, raw=True)
        match content:
            case [list(shape), bytes(name), bytes(buffer)]:
                dtype = _dtype(name.decode("ascii"))
            case _:
                raise MsgpackError("an array is its shape, the name of its dtype, and its bytes")
        if len(shape) > _MOST_AXES or not all(type(n) is int and n >= 0 for n in shape):
            raise MsgpackError(f"an array has the shape {shape[:_MOST_AXES]}")
        if math.prod(shape) * dtype.itemsize != len(buffer):
            raise MsgpackError(f"{len(buffer)} bytes for shape {shape} of {dtype.name}")
        array = np.frombuffer(buffer, dtype).reshape(shape)
        if dtype == np.bool_ and array.view(np.uint8).max(initial=0) > 1:
            raise MsgpackError("a bool is 0 or 1")
        return array.copy() if self._writable else array


def _dtype(name: str) -> np.dtype:
    """The dtype of this name.

    Raises:
      MsgpackError: it is none of numbers, dates or times.
    """
    if name in DTYPES:
        return DTYPES[name]
    dtype: np.dtype | None
    try:
        dtype = np.dtype(name) if len(name) <= _LONGEST_NAME else None
    except (TypeError, ValueError, SyntaxError):
        dtype = None
    # Long doubles, dates and times; one way to write each.
    if dtype is None or dtype.kind not in "fcmM" or dtype.name != name:
        raise MsgpackError(f"no dtype of numbers is named {name[:_LONGEST_NAME]!r}")
    return dtype


def _joined(tree: Any) -> Any:
    """The tree with the arrays that were cut put together, in dicts alone."""
    if not isinstance(tree, dict):
        return tree
    if _CHUNKED in tree:
        return _join(tree)
    return {key: _joined(value) for key, value in tree.items()}


def _join(parts: Mapping[object, object]) -> np.ndarray:
    if parts.keys() != {_CHUNKED, "shape", "chunks"}:
        raise MsgpackError("an array that was cut is its shape and its chunks")
    shape = _numbered(parts["shape"], lambda n: type(n) is int and n >= 0)
    chunks = _numbered(parts["chunks"], lambda a: isinstance(a, np.ndarray) and a.ndim == 1)
    if len(shape) > _MOST_AXES or not chunks or len({chunk.dtype for chunk in chunks}) != 1:
        raise MsgpackError("the chunks of an array are of one dtype")
    if math.prod(shape) != sum(chunk.size for chunk in chunks):
        raise MsgpackError(f"the chunks of an array do not fill its shape {shape}")
    return np.concatenate(chunks).reshape(shape)


def _numbered(items: object, good: Callable[[Any], bool]) -> list[Any]:
    """The values of a dict whose keys are "0", "1" and so on."""
    if not isinstance(items, dict) or set(items) != {str(n) for n in range(len(items))}:
        raise MsgpackError("the parts of an array that was cut are numbered from 0")
    values = [items[str(n)] for n in range(len(items))]
    if not all(good(value) for value in values):
        raise MsgpackError("an array that was cut has impossible parts")
    return values
