"""Configuration: the options of a manager as TOML, checked before anything is opened.

Each key is an argument of CheckpointManager. Rules are text in the notation of Python,
`[storage]` is an ObjectStore, `[coordinator]` a Coordinator, `[[leaf_options]]` a
LeafOptions for the leaves that its `match` names.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec

from ckptmgr.distributed.coordinator import Coordinator
from ckptmgr.errors import InvalidOption, MissingFile, StorageError
from ckptmgr.jobs import OnBusy
from ckptmgr.notation import parse_cadence, parse_retention
from ckptmgr.options import require
from ckptmgr.pipeline.leaf_options import LeafOptions
from ckptmgr.storage.url import ObjectStore


class _Leaf(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """LeafOptions, and the leaves that have them."""

    match: str
    dtype: str | None = None
    write_chunk: tuple[int, ...] | None = None
    read_chunk: tuple[int, ...] | None = None
    chunk_bytes: int | str | None = None
    compression: str | None = None
    own_array: bool | None = None


class _Coordinator(msgspec.Struct, forbid_unknown_fields=True):
    """Coordinator."""

    timeout: float


class _Store(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """ObjectStore; what is left out is its own default."""

    endpoint: str | None = None
    region: str | None = None
    anonymous: bool | None = None
    retries: int | None = None
    deadline: float | None = None
    lease_seconds: float | None = None
    one_writer: bool | None = None


class _Manager(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The arguments of CheckpointManager; those that are left out are None."""

    directory: str | None = None
    when: str | None = None
    keep: str | None = None
    in_flight_bytes: int | str | None = None
    on_busy: str | None = None
    max_pending: int | None = None
    pack_below: int | str | None = None
    leaf_options: list[_Leaf] | None = None
    read_only: bool | None = None
    tolerated_failures: int | None = None
    incremental: bool | None = None
    verify_commits: bool | None = None
    borrow: bool | None = None
    progress: bool | None = None
    storage: _Store | None = None
    coordinator: _Coordinator | None = None


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arguments of CheckpointManager in a TOML file; only those that it gives.

    Raises:
      MissingFile, StorageError: it is not there, or cannot be read.
      InvalidOption: it is no TOML, a key is unknown, or a value is not what it must be; names
        the file and the key, and says what is allowed.
    """
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except FileNotFoundError as error:
        raise MissingFile("there is no such configuration", file=path) from error
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", file=path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidOption(f"this is no TOML: {error}", file=path) from error
    return _arguments(table, path)


def _arguments(table: Mapping[str, object], path: object) -> dict[str, Any]:
    try:
        _refuse_unknown(table)
        said = msgspec.convert(table, _Manager)
        return {name: _argument(name, value) for name, value in _given(said).items()}
    except msgspec.ValidationError as error:
        raise InvalidOption(_told(str(error)), file=path) from error
    except InvalidOption as error:
        raise InvalidOption(error.message, file=path) from error


def _given(struct: msgspec.Struct) -> dict[str, Any]:
    found = {name: getattr(struct, name) for name in struct.__struct_fields__}
    return {name: value for name, value in found.items() if value is not None}


def _argument(name: str, value: Any) -> object:
    """What the manager takes; made here, so that an error names the key."""
    try:
        match value:
            case str() if name == "when":
                return parse_cadence(value)
            case str() if name == "keep":
                return parse_retention(value)
            case _Store():
                return ObjectStore(**_given(value))
            case _Coordinator():
                return Coordinator(value.timeout)
            case list():
                return [_leaf_options(leaf) for leaf in value]
    except InvalidOption as error:
        raise InvalidOption(f"{name}: {error.message}") from error
    if name == "on_busy":
        require(value in get_args(OnBusy), name, "'wait', 'skip' or 'replace'", value)
    return value


def _leaf_options(leaf: _Leaf) -> tuple[str, LeafOptions]:
    given = _given(leaf)
    return given.pop("match"), LeafOptions(**given)


_TABLES: Final[dict[str, type[msgspec.Struct]]] = {
    "storage": _Store,
    "coordinator": _Coordinator,
    "leaf_options": _Leaf,
}


def _refuse_unknown(table: Mapping[str, object]) -> None:
    """Say which keys there are, which msgspec does not."""
    _check_keys(table, _Manager, "")
    for name, kind in _TABLES.items():
        inner = table.get(name)
        for one in inner if isinstance(inner, list) else [inner]:
            if isinstance(one, dict):
                _check_keys(one, kind, f"{name}.")


def _check_keys(table: Mapping[str, object], kind: type[msgspec.Struct], where: str) -> None:
    known = kind.__struct_fields__
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; {near[0]} is" if near else ""
            raise InvalidOption(f"{where}{key} is no option{hint}; there are {', '.join(known)}")


def _told(text: str) -> str:
    """The words of msgspec, the key before them: `max_pending: expected int, got str`."""
    what, _, where = text.rpartition(" - at ")
    what, key = what or text, where.strip("`").removeprefix("$.") if what else ""
    return (
        f"{key}: {what[:1].lower()}{what[1:].replace('`', '').replace(' | null', '')}"
        if key
        else what
    )
