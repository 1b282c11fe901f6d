"""What is saved and restored: trees like those of real trainers, of random normal values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

_WIDTH, _LAYERS, _VOCABULARY = 832, 14, 40_000


def llm() -> dict[str, object]:
    """1.8 GB in 217 leaves: params, mu and nu of a GPT-like model in f32, and a step count."""
    random = np.random.default_rng(0)
    return {
        **{name: _gpt(random) for name in ("params", "mu", "nu")},
        "count": jnp.int32(1),
    }


def leaves(count: int) -> dict[str, object]:
    """So many leaves of 16x16 f32, 1 KB each."""
    random = np.random.default_rng(0)
    return {f"leaf_{i}": _normal(random, 16, 16) for i in range(count)}


def mixed() -> dict[str, object]:
    """2 GB: params in bf16, and in f32 the optimizer's copy of them and its two moments.

    As the checkpointing rules of MLPerf Storage shape it (14 bytes a parameter), with the
    proportions of an 8B model: hidden size 4096, feed-forward 3.5 times that, 8 of 32 heads
    for keys and values, here 1024 wide and 8 layers deep.
    https://github.com/mlcommons/storage, checkpointing
    """
    random = np.random.default_rng(0)
    width, layers, vocabulary = 1024, 8, 16_384
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "embed": {"w": (vocabulary, width)},
        "head": {"w": (width, vocabulary)},
    }
    for number in range(layers):
        shapes[f"layer_{number}"] = {
            "norm_in": (width,),
            "q": (width, width),
            "kv": (width, width // 2),
            "o": (width, width),
            "norm_out": (width,),
            "gate_up": (width, 7 * width),
            "down": (7 * width // 2, width),
        }
    return {
        kind: {
            part: {name: _normal(random, *shape, dtype=dtype) for name, shape in group.items()}
            for part, group in shapes.items()
        }
        for kind, dtype in (
            ("params", jnp.bfloat16),
            ("master", jnp.float32),
            ("mu", jnp.float32),
            ("nu", jnp.float32),
        )
    }


def growth(megabytes: int) -> dict[str, object]:
    """So much in arrays of 32 MB: one drawn, the others made of it."""
    one = _normal(np.random.default_rng(0), 8_000_000)
    return {f"part_{i}": one + i for i in range(megabytes // 32)}


WORKS: dict[str, Callable[[], dict[str, object]]] = {
    "llm": llm,
    "mixed": mixed,
    **{f"leaves-{n}": partial(leaves, n) for n in (100, 1000, 5000, 10_000, 100_000)},
    **{f"growth-{megabytes}": partial(growth, megabytes) for megabytes in (256, 1024, 4096, 8192)},
}


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


def _normal(random: np.random.Generator, *shape: int, dtype: DTypeLike = jnp.float32) -> jax.Array:
    return jnp.array(random.standard_normal(shape, np.float32), dtype)
