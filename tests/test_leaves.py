"""Any tree, any leaf: what comes back is what was saved, or it was refused with its path."""

from __future__ import annotations

import enum
import math
import operator
import struct
from collections import OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.core import FrozenDict
from flax.training.train_state import TrainState
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptmgr
from ckptmgr import CheckpointManager, MemoryStorage, TreeMismatch, UndecodableLeaf, UnsupportedLeaf
from ckptmgr.format.zarr import DTYPES
from ckptmgr.tree import registered
from tests.classes import Broken, Config, Layer, Picky, Point, Stranger, Words
from tests.trees import Pair, assert_same


def there_and_back(path: Path, tree: object, **how: Any) -> Any:
    """Saved and loaded."""
    ckptmgr.save(path / "tree", tree, overwrite=True)
    return ckptmgr.load(path / "tree", **how)


def bits(dtype: np.dtype, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """An array of random bits; of random small numbers where a byte has more bits than items."""
    random = np.random.default_rng(seed)
    if dtype == np.bool_ or dtype.name.startswith(("int2", "int4", "uint2", "uint4", "float4")):
        return random.integers(0, 2, shape).astype(dtype)
    if dtype.name.startswith("float6_"):
        return random.integers(0, 64, shape, np.uint8).view(dtype)
    size = math.prod(shape) * dtype.itemsize
    return random.integers(0, 256, size, np.uint8).view(dtype).reshape(shape)


keys = st.one_of(
    st.text(max_size=6), st.integers(), st.booleans(), st.binary(max_size=4),
    st.floats(allow_nan=False), st.builds(lambda *both: both, st.integers(0, 9), st.text()),
)  # fmt: skip
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
seeds = st.integers(0, 2**32)
dtypes = st.sampled_from(sorted(DTYPES)).map(DTYPES.__getitem__)
# XLA has no float6, and what is wide only under x64.
of_jax = dtypes.filter(
    lambda dtype: (dtype.itemsize < 8 or dtype == np.complex64) and "float6_" not in dtype.name
)
prng = st.sampled_from(["threefry2x32", "rbg", "unsafe_rbg"])
leaves = st.one_of(
    st.builds(bits, dtypes, shapes, seeds),
    st.builds(bits, of_jax, shapes, seeds).map(jnp.asarray),
    st.builds(bits, dtypes, st.just((1,)), seeds).map(lambda array: array[0]),
    st.builds(lambda seed, impl: jax.random.key(seed, impl=impl), st.integers(0, 9), prng),
    st.integers(), st.floats(), st.complex_numbers(), st.booleans(), st.text(), st.binary(),
    st.binary().map(bytearray), st.text().map(Words),
)  # fmt: skip


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Every container that comes back by itself; the keys of one dict are of one type."""
    of_one_type = keys.flatmap(
        lambda key: st.dictionaries(keys.filter(lambda k: type(k) is type(key)), inner, max_size=4)
    )
    return st.one_of(
        of_one_type, of_one_type.map(OrderedDict), st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple), st.builds(Pair, inner, inner),
        st.builds(Point, inner, inner), st.builds(Layer, inner, inner, st.text(max_size=3)),
        st.text(max_size=3).map(Config), st.none(),
    )  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(tree=st.recursive(leaves | st.none(), containers, max_leaves=12))
def test_any_tree_comes_back_with_structure_types_and_bits(tree: Any) -> None:
    """By itself, and through itself as like."""
    with CheckpointManager("memory", storage=MemoryStorage(), pack_below=64) as manager:
        try:
            manager.save(0, tree).result()
        except UnsupportedLeaf as error:
            assert "same key path" in str(error)  # noqa: PT017  # the only reason there is
            return
        assert_same(manager.restore(), tree)
        assert_same(manager.restore(like=tree), tree)


TREES = [
    {"a": np.arange(3)},
    [np.arange(3)],
    (np.arange(3), jnp.arange(2)),
    [{"b": (1, OrderedDict(z=2, a=Pair(3, None)))}],
    jnp.arange(3),
    {},
    [],
    (),
    [None, {"a": None}],
    {"a": 1, "b": "text"},
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_structures_and_types_come_back(tmp_path: Path, tree: object) -> None:
    """A1: nested, bare, empty, without arrays."""
    assert_same(there_and_back(tmp_path, tree), tree)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,), (3, 0, 2)])
@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_of_numpy_comes_back(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    """A2: dtype, shape and bits, on the host."""
    array = bits(DTYPES[name], shape, 1)
    assert_same(there_and_back(tmp_path, array), array)


def test_every_dtype_of_jax_comes_back(tmp_path: Path) -> None:
    """A2: on a device, the wide ones under x64; NaN payloads and -0.0 keep their bits."""
    with jax.enable_x64(True):
        tree = {
            f"{name}{shape}": jnp.asarray(bits(dtype, shape, 2))
            for name, dtype in DTYPES.items()
            if not name.startswith("float6_")  # XLA has none
            for shape in [(), (5,), (3, 0)]
        }
        tree["nan"] = jnp.asarray(np.frombuffer(struct.pack("<II", 0x7FC0BEEF, 1 << 31), "f4"))
        assert_same(there_and_back(tmp_path, tree), tree)


@pytest.mark.parametrize(
    "leaf",
    [
        2**64, -(2**200), math.inf, -math.inf, math.nan, -0.0, 1 - 0j, complex(math.nan, -0.0),
        True, 1, "é\u0000\U0001f600\ud800", "", b"", bytes(range(256)), bytearray(b"\0"),
        np.float32(3), np.int8(-1), np.bool_(True), np.complex128(1j),
        np.datetime64("2020-01-01T12", "s"), np.timedelta64(5, "D"), np.longdouble(1) / 3,
    ],
    ids=repr,
)  # fmt: skip
def test_values_come_back_exactly(tmp_path: Path, leaf: object) -> None:
    """A3: no scalar of numpy becomes one of Python, no bool an int."""
    assert_same(there_and_back(tmp_path, [leaf])[0], leaf)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_draw_the_same_numbers(tmp_path: Path, impl: str) -> None:
    """A4: single ones and arrays of them, sharded ones too, by themselves and through like."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    place = jax.NamedSharding(mesh, jax.P("x"))
    tree = {
        "one": jax.random.key(1, impl=impl),
        "many": jax.random.split(jax.random.key(2, impl=impl), (2, 3)),
        "sharded": jax.device_put(jax.random.split(jax.random.key(3, impl=impl), 8), place),
    }
    shown = there_and_back(tmp_path, tree) and ckptmgr.load_structure(tmp_path / "tree")
    for like in (None, tree, shown):
        found = ckptmgr.load(tmp_path / "tree", like=like)
        assert_same(found, tree)
        for name in found:
            one, other = (
                jax.vmap(jax.random.bits)(k.reshape(-1)) for k in (found[name], tree[name])
            )
            assert np.array_equal(one, other)
        assert found["sharded"].sharding.is_equivalent_to(place, 1)


@pytest.mark.parametrize(
    "other", [jax.random.key(0, impl="rbg"), jax.random.split(jax.random.key(0)), np.zeros(2)]
)
def test_a_key_comes_back_as_nothing_else(tmp_path: Path, other: object) -> None:
    """A4: neither another implementation, nor another shape, nor numbers."""
    with pytest.raises(TreeMismatch, match="'k': saved"):
        there_and_back(tmp_path, {"k": jax.random.key(0)}, like={"k": other})


@pytest.mark.parametrize(
    "tree",
    [
        {1: "a", 2: {3: "b"}}, {0.5: 1, 1.0: 2}, {True: 1, False: 2}, {(1, "x"): 1, (1, "y"): 2},
        {"a.b": 1, "a": {"b": 2}}, {"a/b": 1, "a": {"b": 2}}, {"..": 1, ".": 2, "": 3, "/": 4},
        {"\ud800": 1, "a": {"\udfff": 2}, "\U0001f600": 3},
        {"A": 1, "a": 2, "\0": 3, "x" * 300: 4, "x" * 300 + "y": 5, "é": 6, "e\u0301": 7},
        [{1: [2, {3: bytearray(b"4")}]}],
    ],
    ids=repr,
)  # fmt: skip
def test_keys_of_dicts_keep_type_and_never_collide(tmp_path: Path, tree: Any) -> None:
    """A5, A10: with values, and with arrays that have directories of their own."""
    assert_same(there_and_back(tmp_path, tree), tree)
    arrays = jax.tree.map(lambda leaf: np.full(2, hash(repr(leaf)) % 100), tree)
    with CheckpointManager(tmp_path / "run", pack_below=0) as manager:
        manager.save(0, arrays).result()
        assert_same(manager.restore(), arrays)
    inside = tmp_path / "run" / "step-00000000" / "arrays"
    assert len([path for path in inside.iterdir() if path.is_dir()]) == len(jax.tree.leaves(tree))


def test_registered_classes_come_back_by_themselves(tmp_path: Path) -> None:
    """A6: a dataclass, a static class, a namedtuple, a leaf."""
    tree: Any = {
        "layer": Layer(jnp.ones((2, 2)), None, "gelu"),
        "config": Config("depth=2"),
        "point": Point(1, [2]),
        "leaf": Words(["a", ("b", {"c": 1})]),
    }
    found = there_and_back(tmp_path, tree)
    assert_same(found, tree)
    assert (type(found["point"]), found["config"]) == (Point, tree["config"])


@pytest.mark.parametrize(
    "data",
    [
        None, 3, "x", b"bytes", [1, (2,)], {1: 2}, {}, np.arange(3), np.float32(1), jnp.arange(3),
        {"w": np.ones(2), "b": jnp.ones(2), "n": 1, "": b"x", "a/b": jax.random.key(0)},
    ],
    ids=repr,
)  # fmt: skip
def test_a_registered_leaf_may_be_made_of_anything_plain_and_arrays(
    tmp_path: Path, data: object
) -> None:
    """A6: its decoder gets what its encoder gave."""
    found = there_and_back(tmp_path, [Words(data)])[0]
    assert type(found) is Words
    assert_same(found.text, data)
    assert_same(there_and_back(tmp_path, [Words(data)], like=[Words])[0].text, data)


def test_a_class_that_nobody_registered_comes_back_through_like(tmp_path: Path) -> None:
    """A6: without like the error names the class and both ways out."""
    tree = {"s": Stranger(jnp.ones(2), {"x": 1}), "d": defaultdict(int, k=2), "n": 3}
    assert_same(there_and_back(tmp_path, tree, like=tree), tree)
    with pytest.raises(TreeMismatch, match=r"'s/a'.*Stranger.*like=.*register_node"):
        ckptmgr.load(tmp_path / "tree")
    assert ckptmgr.load(tmp_path / "tree", select="n") == {"s": None, "d": None, "n": 3}
    shown = ckptmgr.load_structure(tmp_path / "tree")
    assert list(shown["s"]) == ["a", "b"]
    assert_same(ckptmgr.load(tmp_path / "tree", like=shown)["s"]["b"], {"x": 1})


def test_a_subclass_of_a_registered_class_is_refused(tmp_path: Path) -> None:
    """It would come back as its base."""

    class More(Words):
        pass

    with pytest.raises(UnsupportedLeaf, match="More"):
        ckptmgr.save(tmp_path / "tree", [More("x")])


class Color(enum.IntEnum):
    """An int that is more than one."""

    RED = 1


@pytest.mark.parametrize("leaf", [print, object(), Color.RED, np.array([object()]), {1, 2}])
def test_what_no_handler_takes_is_refused_before_anything_is_written(
    tmp_path: Path, leaf: object
) -> None:
    """A6: with its path and class."""
    with pytest.raises(UnsupportedLeaf, match=type(leaf).__name__) as caught:
        ckptmgr.save(tmp_path / "tree", {"x": [1, {"y": leaf}]})
    assert caught.value.leaf == "x/1/y"
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_that_fails_is_named_with_its_leaf(tmp_path: Path) -> None:
    """Whatever it raises, or gives that cannot be stored."""
    with pytest.raises(UnsupportedLeaf, match=r"Words.*set") as caught:
        ckptmgr.save(tmp_path / "tree", {"x": Words({1})})
    assert caught.value.leaf == "x"
    with pytest.raises(UnsupportedLeaf, match="aux data of this Layer") as caught:
        ckptmgr.save(tmp_path / "tree", {"x": [Layer(1, 2, activation=print)]})  # type: ignore[arg-type]  # that is the point
    assert caught.value.leaf == "x/0"
    assert list(tmp_path.iterdir()) == []


def test_decoders_that_fail_are_one_error_for_all_leaves(tmp_path: Path) -> None:
    """Each with its path; the bytes are not called damaged."""
    with pytest.raises(UndecodableLeaf, match=r"(?s)'a'.*tests.broken.*'b/0'.*ZeroDivision"):
        there_and_back(tmp_path, {"a": Broken(), "b": [Broken(), 1]})
    with pytest.raises(UndecodableLeaf, match=r"Picky.*tests.picky"):
        there_and_back(tmp_path, {"a": Picky(), "b": 1})
    assert ckptmgr.load(tmp_path / "tree", like={"a": Picky(), "b": 2})["b"] == 1


def test_frozen_dicts_and_namedtuples_come_back_by_themselves(tmp_path: Path) -> None:
    """A7: a namedtuple as one of equal name and fields."""
    tree: Any = FrozenDict({"a": {"b": jnp.ones(2)}, "c": Pair(1, 2)})
    found = there_and_back(tmp_path, tree)
    assert type(found) is FrozenDict
    assert type(found["c"]).__name__ == "Pair"
    assert_same(found, tree)


def test_states_of_flax_and_optax_come_back_through_like(tmp_path: Path) -> None:
    """A7: a TrainState with an optimizer, and the optimizer's state by itself."""
    model = flax.linen.Dense(3)
    params = model.init(jax.random.key(0), jnp.ones((1, 2)))
    adam = optax.chain(optax.clip(1.0), optax.adamw(1e-3))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=adam)
    state = state.apply_gradients(grads=params)
    fresh = TrainState.create(
        apply_fn=model.apply, params=jax.tree.map(jnp.zeros_like, params), tx=adam
    )
    found = there_and_back(tmp_path, state, like=fresh)
    assert_same(jax.tree.leaves(found), jax.tree.leaves(state))
    assert str(jax.tree.structure(found)) == str(jax.tree.structure(fresh))
    alone = there_and_back(tmp_path, state.opt_state)
    assert_same(jax.tree.leaves(alone), jax.tree.leaves(state.opt_state))
    assert alone[1][0]._fields == state.opt_state[1][0]._fields


def test_states_of_nnx_come_back_through_like(tmp_path: Path) -> None:
    """A7: with its variables and the state of its random numbers."""

    def model(seed: int) -> nnx.Module:
        return nnx.Sequential(
            nnx.Linear(2, 3, rngs=nnx.Rngs(seed)), nnx.Dropout(0.5, rngs=nnx.Rngs(seed))
        )

    state, fresh = nnx.state(model(0)), nnx.state(model(1))
    found = there_and_back(tmp_path, state, like=fresh)
    assert str(jax.tree.structure(found)) == str(jax.tree.structure(state))
    assert_same(jax.tree.leaves(found), jax.tree.leaves(state))


def test_modules_of_equinox_come_back_without_their_functions(tmp_path: Path) -> None:
    """A7: a module whole is refused, and the error says how to partition it."""
    model = eqx.nn.MLP(2, 3, 4, 1, activation=jax.nn.gelu, key=jax.random.key(0))
    other = eqx.nn.MLP(2, 3, 4, 1, activation=jax.nn.gelu, key=jax.random.key(1))
    with pytest.raises(UnsupportedLeaf, match=r"equinox\.partition"):
        ckptmgr.save(tmp_path / "tree", {"model": model})
    arrays, _ = eqx.partition(model, eqx.is_array)
    like, rest = eqx.partition(other, eqx.is_array)
    found = eqx.combine(there_and_back(tmp_path, arrays, like=like), rest)
    assert jnp.array_equal(found(jnp.ones(2)), model(jnp.ones(2)))


def test_load_structure_reads_no_array_and_serves_as_like(tmp_path: Path) -> None:
    """A9, A10: shapes, dtypes, shardings; classes for what has none."""
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    place = jax.NamedSharding(mesh, jax.P("x", "y"))
    tree = {
        "w": jax.device_put(jnp.ones((4, 8)), place),
        "host": np.arange(3.0),
        "big": np.arange(3, dtype=">i8"),
        "rest": [1, True, 2.5, "x", b"y", bytearray(b"z"), np.float64(1), 1j, None, {}, Words("w")],
        "when": np.array(["2020"], "M8[Y]"),
    }
    ckptmgr.save(tmp_path / "tree", tree, leaf_options=[("w", ckptmgr.LeafOptions(own_array=True))])
    for path in (tmp_path / "tree").rglob("c.*"):
        path.rename(path.with_name("hidden." + path.name))  # reading any would fail
    shown = ckptmgr.load_structure(tmp_path / "tree")
    for path in (tmp_path / "tree").rglob("hidden.*"):
        path.rename(path.with_name(path.name.removeprefix("hidden.")))
    assert isinstance(shown["w"], jax.ShapeDtypeStruct)
    assert (shown["w"].shape, shown["w"].dtype, shown["w"].sharding) == ((4, 8), jnp.float32, place)
    assert shown["rest"] == [
        int, bool, float, str, bytes, bytearray, np.float64, complex, None, {}, Words,
    ]  # fmt: skip
    assert_same(ckptmgr.load(tmp_path / "tree", like=shown), tree)


class MyList(list[int]):
    """A subclass of a container."""


@pytest.mark.parametrize(
    "leaf", [MyList([1]), type("MyDict", (dict,), {})(), type("S", (str,), {})()]
)
def test_subclasses_of_containers_are_refused(tmp_path: Path, leaf: object) -> None:
    """A10: never silently turned into their base."""
    with pytest.raises(UnsupportedLeaf) as caught:
        ckptmgr.save(tmp_path / "tree", {"x": leaf})
    assert caught.value.leaf == "x"


def test_the_future_of_a_save_shows_the_tree_as_load_structure_will(tmp_path: Path) -> None:
    """Python scalars by their class, arrays by their shape."""
    future = ckptmgr.save_async(tmp_path / "tree", {"w": jnp.ones(3), "n": 1, "h": np.ones(2)})
    future.result()
    assert future.structure == ckptmgr.load_structure(tmp_path / "tree")


class Settings:
    """Aux data that may change without its treedef telling."""

    def __init__(self, value: int) -> None:
        self.value = value


def test_aux_data_that_changes_between_saves_is_saved_as_it_is_then(run: Path) -> None:
    """Though the plan of the tree is kept."""
    settings = Settings(1)
    tree = [[Late(jnp.ones(2), settings), 7], Late(1, Settings(5))]
    with CheckpointManager(run) as manager:
        for step in (1, 2):
            settings.value = step
            manager.save(step, tree).result()
        assert [manager.restore(step)[0][0].aux.value for step in (1, 2)] == [1, 2]
        assert manager.restore(2)[1].aux.value == 5


@jax.tree_util.register_pytree_node_class
class Late:
    """A node with aux data that compares by identity, registered below."""

    def __init__(self, leaf: object, aux: Any) -> None:
        self.leaf, self.aux = leaf, aux

    def tree_flatten(self) -> tuple[tuple[object], Any]:
        """Leaf and aux data."""
        return (self.leaf,), self.aux

    @classmethod
    def tree_unflatten(cls, aux: Any, children: tuple[object]) -> Late:
        """Of these."""
        return cls(children[0], aux)


ckptmgr.register_node(
    Late,
    name="tests.late",
    to_data=lambda aux: aux.tolist() if isinstance(aux, np.ndarray) else aux.value,
    from_data=lambda data: np.array(data) if isinstance(data, list) else Settings(data),
)


def test_a_class_that_is_registered_after_a_save_counts_in_the_next(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan of the same tree is made anew."""
    monkeypatch.setattr(registered, "_NODES", dict(registered._NODES))
    monkeypatch.setattr(registered, "_BY_CLASS", dict(registered._BY_CLASS))
    tree = [Stranger(1, 2)]
    with CheckpointManager(run) as manager:
        manager.save(1, tree).result()
        ckptmgr.register_node(Stranger, name="tests.known")
        manager.save(2, tree).result()
        assert manager.restore(2) == tree
        with pytest.raises(TreeMismatch, match="Stranger"):
            manager.restore(1)


def test_aux_data_that_cannot_be_compared_is_saved_again_and_again(run: Path) -> None:
    """As numpy arrays: no plan is kept for it."""
    with CheckpointManager(run) as manager:
        for step in range(3):
            manager.save(step, Late(step, np.arange(3))).result()
            assert list(manager.restore().aux) == [0, 1, 2]


def test_decoders_run_with_the_callers_x64(tmp_path: Path) -> None:
    """Which jax keeps per thread."""
    with jax.enable_x64(True):
        ckptmgr.save(tmp_path / "tree", [Plus(jnp.array([2**40]))])
        found = ckptmgr.load(tmp_path / "tree")[0].array
    assert (found.dtype, int(found[0])) == (np.int64, 2**40 + 1)


class Plus:
    """A leaf whose decoder computes."""

    def __init__(self, array: jax.Array) -> None:
        self.array = array


ckptmgr.register_leaf(
    Plus, name="tests.plus", encode=lambda leaf: leaf.array, decode=lambda array: Plus(array + 1)
)


def test_memory_that_a_users_encoder_shares_may_change_after_save(run: Path) -> None:
    """What jax took over from numpy is no jax array that nobody changes."""
    with CheckpointManager(run) as manager:
        for step in range(5):
            memory = np.ones(1_000_000, np.float32)
            future = manager.save(step, [Words(jax.device_put(memory))])
            memory[:] = 2
            future.result()
            assert float(manager.restore()[0].text.max()) == 1


def test_a_node_in_which_nothing_is_selected_is_not_made(tmp_path: Path) -> None:
    """Its class may not stand None in the place of a leaf; nor are all its faults hidden."""
    tree = {"a": Strict(1), "b": [Strict(2)], "n": 3}
    ckptmgr.save(tmp_path / "tree", tree)
    found = ckptmgr.load(tmp_path / "tree", select=["n", "b"])
    assert (found["a"], found["b"][0].number, found["n"]) == (None, 2, 3)
    Strict.broken = True
    try:
        with pytest.raises(UndecodableLeaf, match=r"(?s)'a'.*tests.strict.*'b/0'") as caught:
            ckptmgr.load(tmp_path / "tree")
    finally:
        Strict.broken = False
    assert caught.value.leaf == "a"


@jax.tree_util.register_pytree_node_class
class Strict:
    """A node that takes nothing but an int."""

    broken = False

    def __init__(self, number: int) -> None:
        self.number = operator.index(number)

    def tree_flatten(self) -> tuple[tuple[int], None]:
        """The number."""
        return (self.number,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Strict:
        """Of a number, or of what jax puts in its place."""
        if cls.broken or children[0] is None:
            raise ValueError("no number")
        made = object.__new__(cls)
        made.number = children[0]
        return made


ckptmgr.register_node(Strict, name="tests.strict")


def test_a_namedtuple_whose_fields_were_renamed_comes_back(tmp_path: Path) -> None:
    """With the names that it had."""
    odd = namedtuple("odd", ["a", "def"], rename=True)  # noqa: PYI024  # a plain one
    found = there_and_back(tmp_path, odd(1, 2))
    assert (found, found._fields) == ((1, 2), ("a", "_1"))


def test_a_node_that_cannot_be_flattened_is_an_error_of_ours(tmp_path: Path) -> None:
    """Whatever it raises."""

    @jax.tree_util.register_pytree_node_class
    class Broken:
        def tree_flatten(self) -> None:
            raise KeyError("x")

        @classmethod
        def tree_unflatten(cls, *_: object) -> None:
            """Never."""

    for act in (
        lambda: ckptmgr.save(tmp_path / "tree", [Broken()]),
        lambda: ckptmgr.key_paths([Broken()]),
    ):
        with pytest.raises(UnsupportedLeaf, match="cannot flatten"):
            act()
