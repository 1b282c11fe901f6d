"""Classes that users might register, registered once for all tests."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, field

import jax

from ckptmgr import register_leaf, register_node

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024  # a plain one
register_node(Point, name="tests.point")


@register_node(name="tests.layer")
@jax.tree_util.register_dataclass
@dataclass
class Layer:
    """A node with children and aux data that is plain: a str."""

    kernel: object
    bias: object
    activation: str = field(default="relu", metadata={"static": True})


@register_node(
    name="tests.config",
    to_data=lambda config: config.text.encode(),
    from_data=lambda data: Config(data.decode()),
)
@jax.tree_util.register_static
@dataclass(frozen=True)
class Config:
    """A node without children; its aux data is itself, stored as bytes."""

    text: str


@register_leaf(
    name="tests.words",
    encode=lambda words: words.text,
    decode=lambda text: Words(text),  # noqa: PLW0108  # there is no Words yet
)
@dataclass(frozen=True)
class Words:
    """A leaf that is stored as whatever its text is."""

    text: object


@jax.tree_util.register_dataclass
@dataclass
class Stranger:
    """A node that jax can flatten and nobody registered."""

    a: object
    b: object


@register_node(name="tests.picky", to_data=lambda _: None, from_data=lambda _: 1 / 0)
@jax.tree_util.register_static
@dataclass(frozen=True)
class Picky:
    """A node whose decoder fails."""


@register_leaf(name="tests.broken", encode=lambda _: 1, decode=lambda _: 1 / 0)
class Broken:
    """A leaf whose decoder fails."""
