"""Key paths as text and as directory names."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmgr.format import keypath

NASTY = ["..", ".", "", "/", "a/b", "a.b", "A", "é", "e\u0301", "\0", "~", "~1", "%", "^a", "@"]


def test_a_path_reads_as_its_keys() -> None:
    """As the README shows them."""
    assert keypath.join(["params", "layer_0", "kernel", 3]) == "params/layer_0/kernel/3"
    assert keypath.directory("params/layer_0/kernel/3") == "params.layer_0.kernel.3"


def test_a_slash_inside_a_key_is_escaped() -> None:
    """So that {'a/b': x} and {'a': {'b': x}} differ."""
    assert keypath.join(["a/b", "~"]) == "a~1b/~0"


@given(st.lists(st.one_of(st.text(), st.sampled_from(NASTY)), min_size=1, max_size=4))
def test_a_name_stays_in_its_directory(keys: list[str]) -> None:
    """One level, no dot in front, short enough, plain ASCII."""
    name = keypath.directory(keypath.join(keys))
    assert "/" not in name
    assert not name.startswith(".")
    assert 0 < len(name) <= 200
    assert name.isascii()
    assert name.isprintable()


@given(
    st.lists(
        st.lists(st.one_of(st.text(), st.sampled_from(NASTY)), min_size=1, max_size=3).map(tuple),
        min_size=2,
        max_size=6,
        unique=True,
    )
)
def test_two_paths_share_no_name_even_where_case_and_form_are_ignored(
    paths: list[tuple[str, ...]],
) -> None:
    """Injective, also on file systems that fold names."""
    names = [keypath.directory(keypath.join(path)) for path in paths]
    folded = {unicodedata.normalize("NFKC", name).casefold() for name in names}
    assert len(folded) == len(paths)


def test_over_long_paths_that_differ_at_the_end_do_not_collide() -> None:
    """They end on a hash of the whole."""
    long = "x" * 300
    names = {keypath.directory(f"{long}{end}") for end in "ab"}
    assert len(names) == 2


@pytest.mark.parametrize("path", ["zarr/json", "zarr.json"])
def test_no_array_takes_the_place_of_the_groups_metadata(path: str) -> None:
    """`arrays/zarr.json` is a file."""
    assert keypath.directory(path) != "zarr.json"
