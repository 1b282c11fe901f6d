"""The header of a step: what the trainer says of it beside the tree, checked as it is said."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ckptmgr.errors import InvalidOption
from ckptmgr.format.scalar import JSON, to_json
from ckptmgr.format.zarr import NAMES


@dataclass(frozen=True, slots=True)
class Header:
    """Step, metrics and metadata; metrics may be jax scalars that are still being computed."""

    step: int | None = None
    metrics: Mapping[str, object] = field(default_factory=dict)
    metadata: Mapping[str, JSON] = field(default_factory=dict)


def header(step: int | None, metrics: object, metadata: object) -> Header:
    """The header of these arguments, which are copied.

    Raises:
      InvalidOption: a metric is no scalar, or metadata is not plain JSON.
    """
    return Header(step, _metrics(metrics), _metadata(metadata))


def fetch(metrics: Mapping[str, object]) -> dict[str, JSON]:
    """The metrics as exact JSON of floats. Waits for those that are still being computed."""
    return {name: to_json(float(np.asarray(value))) for name, value in metrics.items()}


def _metrics(metrics: object) -> dict[str, object]:
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise InvalidOption(f"metrics is a dict of numbers by name, not {metrics!r}")
    return {_name(name): _scalar(name, value) for name, value in metrics.items()}


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidOption(f"the name of a metric is a str, not {name!r}")
    return name


def _scalar(name: str, value: object) -> object:
    """A float, or a jax scalar that may still be computed; no array that can change meanwhile."""
    dtype: Any = getattr(value, "dtype", None)
    scalar = getattr(value, "shape", None) == () and NAMES.get(dtype, "complex")[:7] != "complex"
    if scalar and _is_computed(value):
        return value
    try:
        if (dtype is None and isinstance(value, int | float)) or scalar:
            return float(value)  # type: ignore[arg-type]  # a number, as far as can be seen
    except (OverflowError, ValueError, TypeError) as error:
        raise InvalidOption(f"metric {name!r} is no float: {error}") from error
    raise InvalidOption(f"metric {name!r} is a scalar number, not {_short(value)}; its mean, say")


def _is_computed(value: object) -> bool:
    """Whether it is an array of jax; where that was not imported nothing is."""
    jax = sys.modules.get("jax")
    return isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) if jax else False


def _metadata(metadata: object) -> dict[str, JSON]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise InvalidOption(f"metadata is a dict, not {_short(metadata)}")
    try:
        copy = _plain(metadata, "metadata")
    except RecursionError as error:
        raise InvalidOption("metadata is nested too deep") from error
    assert isinstance(copy, dict)
    return copy


def _plain(value: object, where: str) -> JSON:
    """A copy of plain JSON; everything that JSON would turn into something else is refused."""
    if isinstance(value, dict):
        for key in value:
            if type(key) is not str:
                raise InvalidOption(f"{where} has the key {key!r}; in JSON keys are str")
        return {key: _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if value is None or type(value) in (str, bool):
        return value  # type: ignore[return-value]  # narrowed by its exact type
    if isinstance(value, int) and type(value) is int and -(2**63) <= value < 2**64:
        return value
    if isinstance(value, float) and type(value) is float and math.isfinite(value):
        return value
    raise InvalidOption(
        f"{where} is {_short(value)}; metadata is plain JSON: dict, list, str, bool, None, "
        "finite numbers"
    )


def _short(value: object) -> str:
    text = repr(value)
    return f"a {type(value).__name__} ({textwrap.shorten(text, 60)})"
