"""Who writes what: evenly among those that hold it, and the same in every process."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckptmgr.pipeline.spread import Spread
from ckptmgr.tree.per_process import Processes

MIB = 1 << 20


@given(
    count=st.integers(2, 8),
    sizes=st.lists(st.integers(0, 1 << 24), min_size=1, max_size=40),
    nbytes=st.integers(0, 1 << 40),
)
def test_loads_differ_by_one_piece_at_the_most(count: int, sizes: list[int], nbytes: int) -> None:
    """Where all hold everything."""
    spread = Spread(Processes(0, count), nbytes)
    loads = [0] * count
    for size in sizes:
        loads[spread.owner(range(count), size)] += size
    assert max(loads) - min(loads) <= max(sizes)


@given(st.lists(st.tuples(st.sets(st.integers(0, 3), min_size=1), st.integers(0, 99)), max_size=30))
def test_every_process_chooses_the_same_and_only_holders(
    pieces: list[tuple[set[int], int]],
) -> None:
    """Each piece is exactly one's."""
    spreads = [Spread(Processes(index, 4), 10**6) for index in range(4)]
    for holders, size in pieces:
        mine = [spread.mine(tuple(sorted(holders)), size) for spread in spreads]
        assert sum(mine) == 1
        assert mine.index(True) in holders
    assert all(spread.owners == spreads[0].owners for spread in spreads)


def test_chunks_get_smaller_where_there_is_little_to_write() -> None:
    """A sixteenth of what each is to write, within bounds; alone there is nothing to spread."""
    sizes = {1 << 10: 64 << 10, 64 * MIB: MIB, 1 << 40: 16 * MIB}
    for nbytes, chunk in sizes.items():
        assert Spread(Processes(0, 4), nbytes).chunk_bytes == chunk
    assert Spread(Processes(0, 1), 64 * MIB).chunk_bytes == 16 * MIB
