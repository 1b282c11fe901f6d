"""Trees to save, and what it means that one came back."""

from __future__ import annotations

import os
from collections import OrderedDict, namedtuple
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024  # a plain one, as optax has them


def entries(run: str | os.PathLike[str]) -> list[str]:
    """What lies in a run but for the lock, and the status that is written now and then."""
    return sorted(
        p.name for p in Path(run).iterdir() if not p.name.startswith((".lock", ".status"))
    )


def common() -> dict[str, object]:
    """One of each kind of leaf and container; large and small, jax and numpy."""
    return {
        "large": jnp.arange(600_000, dtype=jnp.float32).reshape(600, 1000),
        "half": jnp.linspace(0, 1, 64, dtype=jnp.bfloat16),
        "host": np.random.default_rng(0).standard_normal((300, 1000)),
        "list": [jnp.ones((3,)), np.arange(4, dtype=np.int16), []],
        "pair": Pair(1, (2.5, b"bytes")),
        "ordered": OrderedDict(b=True, a=-0.0),
        "text": "é\ud800",
        "huge": 2**100,
        "complex": 1 - 2j,
        "none": None,
        "empty": {"dict": {}, "tuple": (), "array": jnp.zeros((0, 3)), "host": np.zeros((2, 0))},
        "scalar": np.float32(3),
        "zero_d": jnp.int32(7),
    }


def assert_same(found: object, expected: object) -> None:
    """Same structure, classes, dtypes and bits."""
    left, left_def = jax.tree.flatten(found)
    right, right_def = jax.tree.flatten(expected)
    assert str(left_def) == str(right_def)
    for one, other in zip(left, right, strict=True):
        assert type(one) is type(other)
        if hasattr(one, "dtype"):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
                one, other = jax.random.key_data(one), jax.random.key_data(other)  # noqa: PLW2901  # as bits
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
        else:
            assert repr(one) == repr(other)
