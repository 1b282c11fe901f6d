"""LeafOptions: how the arrays of a leaf are stored, where the default will not do. Pure.

They are given by globs of key paths or as a prefix tree, and chosen as a plan is made.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ckptmgr.errors import InvalidOption, TreeMismatch
from ckptmgr.format import bounds
from ckptmgr.format.chunks import (
    CHUNK_BYTES,
    check_divides,
    default_chunk,
    largest_chunk,
)
from ckptmgr.format.zarr import DTYPES, NAMES, RAW, ZSTD_LEVELS, Codec, Shape, cells
from ckptmgr.limiter import parse_bytes
from ckptmgr.tree.globs import by_globs
from ckptmgr.tree.rules import by_prefix, prefixes

_SMALL_CHUNK: Final = 1_000_000
_ZSTD_LEVEL: Final = 3
_FEW: Final = 64  # how many times smaller than asked for a chunk may come out


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafOptions:
    """How the arrays of a leaf are stored.

        leaf_options=[("params/*", LeafOptions(dtype="bfloat16")),
                      ("opt_state", LeafOptions(compression="zstd"))]

    Args:
      dtype: store numbers as this dtype. Comes back as that, or as what `like` asks for.
        Integers must keep their values and floats stay finite, else the save fails.
      write_chunk: the shape of a chunk, one file each; divides the shape of a shard.
      read_chunk: the shape of smaller chunks inside (Zarr's sharding codec), so that
        other readers can read less; divides `write_chunk`.
      chunk_bytes: the most bytes of a chunk, in place of its shape; an int or "4MiB".
      compression: "zstd", or "zstd:9" for another level than 3; None: none.
      own_array: True: a Zarr array of its own however small; False: into the pack, up to
        16 MiB. None: by size, but an array of its own where chunks or compression are given.

    Leaves without arrays, such as Python numbers, have nothing to choose.

    Raises:
      InvalidOption: a value is impossible, or two of them contradict each other.
    """

    dtype: object = None
    write_chunk: Shape | None = None
    read_chunk: Shape | None = None
    chunk_bytes: int | str | None = None
    compression: str | None = None
    own_array: bool | None = None

    def __post_init__(self) -> None:
        """Check each value and bring it into one form."""
        put = object.__setattr__  # frozen for everybody else
        if self.dtype is not None:
            put(self, "dtype", _dtype(self.dtype))
        for name in ("write_chunk", "read_chunk"):
            put(self, name, _shape(getattr(self, name), name))
        if self.chunk_bytes is not None:
            put(self, "chunk_bytes", parse_bytes(self.chunk_bytes, "chunk_bytes"))
            if self.write_chunk is not None or self.read_chunk is not None:
                raise InvalidOption(
                    "chunk_bytes chooses the shape of chunks: give one or the other"
                )
            if self.chunk_bytes < _SMALL_CHUNK:  # type: ignore[operator]  # parsed above
                warnings.warn(
                    f"chunk_bytes={self.chunk_bytes}: chunks under 1 MB make many small files",
                    stacklevel=3,
                )
        _zstd_level(self.compression)
        if not (self.own_array is None or isinstance(self.own_array, bool)):
            raise InvalidOption(f"own_array is True, False or None, not {self.own_array!r}")
        if self.own_array is False and self.needs_own_array:
            raise InvalidOption("what lies in the pack has neither chunks nor compression")

    @property
    def needs_own_array(self) -> bool:
        """Whether something was asked for that the pack cannot do."""
        shapeless = self.write_chunk is None and self.read_chunk is None
        return not (shapeless and self.chunk_bytes is None and self.compression is None)

    def packed(self, nbytes: int, pack_below: int, leaf: str) -> bool:
        """Whether an array goes into the pack.

        Raises:
          InvalidOption: it is too large for it.
        """
        if self.own_array is None:
            return nbytes < pack_below and not self.needs_own_array
        if not self.own_array and nbytes > CHUNK_BYTES:
            raise InvalidOption(
                f"own_array=False: the pack takes arrays of up to 16 MiB, this has {nbytes} bytes",
                leaf=leaf,
            )
        return not self.own_array

    def stored_as(self, dtype: np.dtype) -> np.dtype:
        """The dtype on disk of numbers of this dtype."""
        return self.dtype if isinstance(self.dtype, np.dtype) else dtype

    def chunks(
        self, shape: Shape, shard: Shape, itemsize: int, leaf: str, limit: int = CHUNK_BYTES
    ) -> tuple[Shape, Codec]:
        """The shape of the chunks that are written, and what is done to each.

        `limit`: the bytes of a chunk where nothing else is said.

        Raises:
          InvalidOption: a shape does not divide what it must, or chunk_bytes is under an item.
        """
        sharded = tuple(n != edge for n, edge in zip(shape, shard, strict=True))
        if self.write_chunk is not None:
            check_divides(self.write_chunk, shard, "write_chunk", "the shard", leaf)
            chunk = self.write_chunk
        elif self.read_chunk is not None:
            check_divides(self.read_chunk, shard, "read_chunk", "the shard", leaf)
            counts = tuple(n // edge for n, edge in zip(shard, self.read_chunk, strict=True))
            inside = itemsize * math.prod(self.read_chunk)
            blocks = largest_chunk(counts, sharded, max(1, CHUNK_BYTES // inside))
            chunk = tuple(n * edge for n, edge in zip(blocks, self.read_chunk, strict=True))
        elif isinstance(self.chunk_bytes, int):
            if self.chunk_bytes < itemsize:
                raise InvalidOption(
                    f"chunk_bytes={self.chunk_bytes} is less than an item of {itemsize} bytes",
                    leaf=leaf,
                )
            chunk = largest_chunk(shard, sharded, self.chunk_bytes // itemsize)
            nbytes = math.prod(chunk) * itemsize
            if nbytes * _FEW < min(self.chunk_bytes, math.prod(shard) * itemsize):
                raise InvalidOption(
                    f"chunk_bytes={self.chunk_bytes}: the largest chunk that divides the shard "
                    f"{shard} has {nbytes} bytes, a file each; give write_chunk, or more bytes",
                    leaf=leaf,
                )
        else:
            chunk = default_chunk(shape, shard, itemsize, limit)
        if self.read_chunk is not None:
            check_divides(self.read_chunk, chunk, "read_chunk", "write_chunk", leaf)
        self._refuse_large(chunk, itemsize, leaf)
        level = _zstd_level(self.compression)
        return chunk, RAW if level is None and self.read_chunk is None else Codec(
            self.read_chunk, level
        )

    def _refuse_large(self, chunk: Shape, itemsize: int, leaf: str) -> None:
        """Refuse what a reader would not take: it trusts no checkpoint with all of its memory."""
        zipped, inside = self.compression is not None, self.read_chunk or chunk
        most = bounds.largest_chunk(zipped=zipped, inside=self.read_chunk is not None)
        if math.prod(chunk) * itemsize > most:
            raise InvalidOption(
                f"a chunk of the shape {chunk} would have {math.prod(chunk) * itemsize} bytes, and "
                f"one stored like this at most {most}: give a smaller write_chunk or chunk_bytes",
                leaf=leaf,
            )
        if cells(chunk, inside) > bounds.MOST_CHUNKS_INSIDE:
            raise InvalidOption(
                f"read_chunk={inside} makes more than {bounds.MOST_CHUNKS_INSIDE} chunks inside "
                f"each of {chunk}",
                leaf=leaf,
            )


def _dtype(value: object) -> np.dtype:
    try:
        known = DTYPES.get(value) if isinstance(value, str) else None
        dtype: np.dtype = known or np.dtype(value)  # type: ignore[call-overload]  # anything that a caller may write
    except (TypeError, ValueError, SyntaxError) as error:
        raise InvalidOption(f"dtype is the name of a dtype, not {value!r}") from error
    if dtype not in NAMES:
        raise InvalidOption(f"dtype is one of numbers, in the machine's byte order, not {value!r}")
    return dtype


def _shape(value: object, option: str) -> Shape | None:
    if value is None:
        return None
    good = isinstance(value, Sequence) and not isinstance(value, str)
    edges: Shape = tuple(value) if good else ()  # type: ignore[arg-type]  # just checked
    if not good or not all(type(edge) is int and edge > 0 for edge in edges):
        raise InvalidOption(f"{option} is a tuple of positive ints, not {value!r}")
    return edges


def _zstd_level(compression: str | None) -> int | None:
    if compression is None:
        return None
    name, _, level = str(compression).partition(":")
    try:
        number = int(level) if level else _ZSTD_LEVEL
    except ValueError:
        number = max(ZSTD_LEVELS) + 1
    if name != "zstd" or number not in ZSTD_LEVELS:
        raise InvalidOption(
            f"compression is None, 'zstd' or 'zstd:LEVEL' with a level from {ZSTD_LEVELS[0]} to "
            f"{ZSTD_LEVELS[-1]}, not {compression!r}"
        )
    return number


_DEFAULT: Final = LeafOptions()


class LeafRules:
    """The options of each leaf.

    Args:
      rules: pairs of a glob and its LeafOptions, of which the first that matches a leaf
        wins; or a prefix tree of LeafOptions and None.

    Raises:
      InvalidOption: it is neither.
    """

    def __init__(self, rules: object = ()) -> None:
        self._globs: list[tuple[str, LeafOptions]] = []
        self._prefixes: dict[str | None, LeafOptions] = {}
        if isinstance(rules, list | tuple) and all(_is_pair(rule) for rule in rules):
            self._globs = [(glob, options) for glob, options in rules]
            return
        for path, options in prefixes(rules, "leaf_options").items():
            if isinstance(options, LeafOptions):
                self._prefixes[path] = options
            elif options is not None:
                raise InvalidOption(
                    "leaf_options is a list of (glob, LeafOptions), or a prefix tree of "
                    f"LeafOptions, not {rules!r}"
                )

    def of(self, paths: Sequence[str]) -> list[LeafOptions]:
        """The options of the leaves at these paths.

        Raises:
          TreeMismatch: a glob or a prefix matches none of them.
        """
        if self._globs:
            return [found or _DEFAULT for found in by_globs(self._globs, paths, "leaf_options")]
        if not self._prefixes:
            return [_DEFAULT] * len(paths)
        chosen, unused = by_prefix(self._prefixes, paths, _DEFAULT)
        for path in unused:
            raise TreeMismatch("leaf_options names what the tree does not hold", leaf=path)
        return chosen


NO_RULES: Final = LeafRules()


def _is_pair(rule: object) -> bool:
    if not isinstance(rule, list | tuple) or len(rule) != 2:  # noqa: PLR2004  # a pair is of two
        return False
    return isinstance(rule[0], str) and isinstance(rule[1], LeafOptions)
