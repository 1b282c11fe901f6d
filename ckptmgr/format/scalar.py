"""Exact JSON of Python's own values.

What JSON has is itself: str, bool, None, ints up to 2**53, finite floats. The rest is
an object of one key that names the type: `{"int": "0x..."}`, `{"float": bits}`,
`{"complex": [re, im]}`, `{"str": utf-8 in hex}`, `{"bytes": hex}`, `{"tuple": [...]}`,
`{"list": [...]}`, `{"dict": [[key, value], ...]}`.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    JSON: TypeAlias = bool | int | float | str | list["JSON"] | dict[str, "JSON"] | None
else:
    JSON = Any  # msgspec, which reads the annotations of a struct, knows no recursive alias
_EXACT_IN_JSON = 2**53
_PAIR = 2
_DOUBLE = 8


def to_json(value: object) -> JSON:
    """The JSON of a str, bytes, bool, int, float, complex, None; a tuple, list or dict of them.

    Raises:
      TypeError: it is none of these, subclasses included: they would come back as another type.
      RecursionError: it holds itself, or is nested too deep.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value  # type: ignore[return-value]  # narrowed by its exact type
    if isinstance(value, int) and kind is int:
        return value if -_EXACT_IN_JSON <= value <= _EXACT_IN_JSON else {"int": hex(value)}
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if isinstance(value, complex) and kind is complex:
        return {"complex": [to_json(value.real), to_json(value.imag)]}
    if isinstance(value, str) and kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return {"str": value.encode("utf-8", "surrogatepass").hex()}
        return value
    if isinstance(value, bytes) and kind is bytes:
        return {"bytes": value.hex()}
    return _container_to_json(value)


def _container_to_json(value: object) -> JSON:
    kind = type(value)
    if isinstance(value, tuple | list) and kind in (tuple, list):
        return {kind.__name__: [to_json(item) for item in value]}
    if isinstance(value, dict) and kind is dict:
        return {"dict": [[to_json(key), to_json(item)] for key, item in value.items()]}
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} has no exact JSON form")


def from_json(value: JSON) -> object:
    """The value that `to_json` was given.

    Raises:
      ValueError: it is not what `to_json` writes.
    """
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise ValueError("a bare list is no value")  # noqa: TRY004  # one error for every fault
        return value
    match list(value.items()):
        case [("int", str(text))]:
            return int(text, 16)
        case [("float", str(text))]:
            return _double(bytes.fromhex(text))
        case [("complex", [real, imag])]:
            parts = from_json(real), from_json(imag)
            if all(isinstance(part, float) for part in parts):
                return complex(*parts)  # type: ignore[call-overload]  # checked to be floats
        case [("str", str(text))]:
            return bytes.fromhex(text).decode("utf-8", "surrogatepass")
        case [("bytes", str(text))]:
            return bytes.fromhex(text)
        case [(("tuple" | "list" | "dict") as kind, list(items))]:
            return _container(kind, items)
    raise ValueError(f"unknown value {sorted(value)}")


def _double(data: bytes) -> float:
    if len(data) != _DOUBLE:
        raise ValueError(f"a float has {_DOUBLE} bytes, not {len(data)}")
    return float(struct.unpack(">d", data)[0])


def _container(kind: str, items: list[JSON]) -> object:
    if kind == "dict":
        return dict(_pair(item) for item in items)
    values = [from_json(item) for item in items]
    return tuple(values) if kind == "tuple" else values


def _pair(item: JSON) -> tuple[object, object]:
    if not isinstance(item, list) or len(item) != _PAIR:
        raise ValueError("an item of a dict is a key and a value")
    key = from_json(item[0])
    try:
        hash(key)
    except TypeError as error:
        raise ValueError(f"no dict has a key like {key!r}") from error
    return key, from_json(item[1])
