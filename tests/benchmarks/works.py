"""What is saved and restored: trees like those of real trainers, of random normal values."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

_WIDTH, _LAYERS, _VOCABULARY = 832, 14, 40_000


def llm() -> dict[str, object]:
    """1.8 GB in 217 leaves: params, mu and nu of a GPT-like model in f32, and a step count."""
    random = np.random.default_rng(0)
    return {
        **{name: _gpt(random) for name in ("params", "mu", "nu")},
        "count": jnp.int32(1),
    }


def leaves() -> dict[str, object]:
    """5,000 leaves of 16x16 f32."""
    random = np.random.default_rng(0)
    return {f"leaf_{i}": _normal(random, 16, 16) for i in range(5000)}


WORKS = {"llm": llm, "leaves": leaves}


def nbytes(tree: object) -> int:
    """The bytes of all arrays of a tree."""
    return sum(int(leaf.nbytes) for leaf in jax.tree.leaves(tree))


def _gpt(random: np.random.Generator) -> dict[str, object]:
    return {
        "embed": _normal(random, _VOCABULARY, _WIDTH),
        "norm": _normal(random, _WIDTH),
        **{f"layer_{i}": dict(_layer(random)) for i in range(_LAYERS)},
    }


def _layer(random: np.random.Generator) -> Iterator[tuple[str, jax.Array]]:
    yield "norm", _normal(random, _WIDTH)
    yield "qkv", _normal(random, _WIDTH, 3 * _WIDTH)
    yield "out", _normal(random, _WIDTH, _WIDTH)
    yield "up", _normal(random, _WIDTH, 4 * _WIDTH)
    yield "down", _normal(random, 4 * _WIDTH, _WIDTH)


def _normal(random: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.array(random.standard_normal(shape, np.float32))
