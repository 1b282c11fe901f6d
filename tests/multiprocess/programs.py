"""What the processes of the tests run: one function each, by `launch`."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ckptmgr
import ckptmgr.functional as one_tree
from ckptmgr import (
    CheckpointError,
    CheckpointManager,
    Coordinator,
    Every,
    OnPreemption,
    PerProcess,
    WhenIdle,
)
from ckptmgr.distributed.client import JaxClient
from ckptmgr.storage.attempt import LocalAttempt
from ckptmgr.storage.base import Bytes
from ckptmgr.storage.local import LocalStorage
from tests.distributed.contract import CONTRACT

MIB = 1 << 20


def mesh(*, across: bool = True) -> Mesh:
    """All devices, `x` across processes and `y` within; or the other way round."""
    devices = np.array(jax.devices()).reshape(jax.process_count(), -1)
    return Mesh(devices if across else devices.T, ("x", "y"))


def put(array: np.ndarray, *spec: object, on: Mesh | None = None) -> jax.Array:
    """A global array of these values."""
    sharding = NamedSharding(on or mesh(), PartitionSpec(*spec))
    return jax.make_array_from_callback(
        array.shape, sharding, lambda index: array[index], dtype=array.dtype
    )


SPECS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "rows": ((512, 1024), np.float32, ("x",)),
    "both": ((512, 768), jnp.bfloat16, ("x", "y")),
    "tuple": ((96, 64), np.int32, (("x", "y"),)),
    "copies": ((3000, 100), np.float32, ()),
    "within": ((24,), np.int32, ("y",)),
    "across": ((16, 8), np.float32, (None, "x")),
    "empty": ((0, 8), np.float32, ()),
    "scalar": ((), np.float32, ()),
}


def values() -> dict[str, np.ndarray]:
    """What is saved, the same in every process and run."""
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(0, 120, shape).astype(dtype) for name, (shape, dtype, _) in SPECS.items()
    }


def tree() -> dict[str, Any]:
    """Arrays in all kinds of places, and leaves that are no arrays."""
    arrays = {name: put(array, *SPECS[name][2]) for name, array in values().items()}
    return {**arrays, "numpy": np.arange(5.0), "python": 3, "text": "abc", "none": None}


def equal(found: jax.Array, wanted: np.ndarray) -> bool:
    """Whether this process's part of an array has these values."""
    same = found.shape == wanted.shape and found.dtype == wanted.dtype
    return same and all(
        np.asarray(shard.data).tobytes() == np.ascontiguousarray(wanted[shard.index]).tobytes()
        for shard in found.addressable_shards
    )


def all_equal(found: dict[str, Any]) -> bool:
    """Whether a restored tree is the one that was saved."""
    rest = (found["python"], found["text"], found["none"], found["numpy"].tolist())
    return rest == (3, "abc", None, [0.0, 1.0, 2.0, 3.0, 4.0]) and all(
        equal(found[name], array) for name, array in values().items()
    )


def told(error: BaseException | None) -> list[Any]:
    """An error as the tests look at it."""
    about = (getattr(error, name, None) for name in ("process", "leaf", "step"))
    return [type(error).__name__, *about, str(error)]


def failed(call: Callable[[], object]) -> list[Any]:
    """The error of a call, or what it returns."""
    try:
        return ["returned", None, None, None, str(call())[:200]]
    except CheckpointError as error:
        return told(error)


# Saving and restoring


def save(directory: str) -> dict[str, Any]:
    """Save the tree and what this process has for itself; say how much it wrote."""
    me = jax.process_index()
    position = {"index": 100 + me, "seen": np.full(me + 1, me), "text": "x" * me}
    shuffled = np.full((1 + me) * 300_000, me)  # large enough for files of its own
    with CheckpointManager(directory, coordinator=Coordinator(timeout=20)) as manager:
        future = manager.save(
            1, {**tree(), "data": PerProcess(position), "order": [PerProcess(shuffled)]}
        )
        future.result()
        steps = manager.all_steps()
        found = manager.restore(1)
    own = found["data"].value
    return {
        "written": future.progress.bytes_done,
        "total": future.progress.bytes_total,
        "steps": steps,
        "equal": all_equal(found),
        "position": [own["index"], own["seen"].tolist(), own["text"]],
        "order": np.array_equal(found["order"][0].value, shuffled),
        "specs": {name: str(found[name].sharding.spec) for name in SPECS},
    }


def incremental(directory: str) -> dict[str, Any]:
    """Two saves of which the second changes one array, one part of it in each process."""
    me = jax.process_index()
    own = PerProcess({"index": np.full(300_000, me)})
    with CheckpointManager(
        directory, incremental=True, coordinator=Coordinator(timeout=20)
    ) as manager:
        for step in (1, 2):
            changed = put(np.full((2, 300_000), step, np.float32), "x")
            manager.save(step, {**tree(), "own": own, "changed": changed}).result()
        found = manager.restore(2)
    same = np.array_equal(found["own"].value["index"], own.value["index"])
    right = equal(found["changed"], np.full((2, 300_000), 2, np.float32))
    return {"equal": all_equal(found) and same and right}


def removed(directory: str) -> dict[str, Any]:
    """A save after the directory was removed, which only its one writer can tell."""
    with CheckpointManager(directory, coordinator=Coordinator(timeout=20)) as manager:
        manager.save(1, {"n": 1}).result()
        if jax.process_index() == 0:
            shutil.rmtree(directory)
        return {"error": told(manager.save(2, {"n": 2}).exception())}


def golden(directory: str) -> dict[str, Any]:
    """The golden checkpoint of two processes: parts in packs, chunks of both, own values."""
    leaves = {
        "parts": put(np.arange(32.0, dtype=np.float32).reshape(8, 4), "x", "y"),
        "chunks": put(np.arange(64, dtype=np.int32).reshape(8, 8), None, "x"),
        "copies": put(np.ones(5, jnp.bfloat16)),
        "own": PerProcess([jax.process_index(), np.arange(2 + jax.process_index())]),
        "host": np.arange(3),
    }
    options = [("chunks", ckptmgr.LeafOptions(own_array=True))]
    info = ckptmgr.save(directory, leaves, leaf_options=options)
    return {"leaves": info.leaves}


def load(directory: str) -> dict[str, Any]:
    """Load the tree in another number of processes, as it was and on other meshes."""
    names = [*SPECS, "numpy", "python", "text"]
    found = {"as saved": all_equal(ckptmgr.load(directory, select=names))}
    other = mesh(across=False)
    specs: list[tuple[Any, ...]] = [("y",), (None, "y"), ()]
    for spec in specs:
        places = {
            name: NamedSharding(
                other, PartitionSpec(*spec) if _fits(array, spec) else PartitionSpec()
            )
            for name, array in values().items()
        }
        loaded = ckptmgr.load(directory, select=list(SPECS), shardings=[*_rules(places)])
        found[str(spec)] = all(equal(loaded[name], a) for name, a in values().items()) and all(
            loaded[name].sharding == place for name, place in places.items()
        )
    like = {
        name: jax.ShapeDtypeStruct(
            (8, *array.shape[1:]) if name == "across" else array.shape,
            jnp.float32,
            sharding=NamedSharding(other, PartitionSpec()),
        )
        for name, array in values().items()
    }
    cast = ckptmgr.load(directory, like, select=[*SPECS], casting="unsafe", resize=True)
    found["cast and resized"] = all(
        equal(cast[name], array.astype(np.float32)[: 8 if name == "across" else None])
        for name, array in values().items()
        if name != "scalar"
    )
    few = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec())
    loaded = ckptmgr.load(directory, select=list(SPECS), shardings=few)
    found["on one device of one process"] = all(
        equal(loaded[name], array) and len(loaded[name].addressable_shards) == _first()
        for name, array in values().items()
    )
    found["own"] = failed(lambda: ckptmgr.load(directory))[4]
    return found


def _first() -> int:
    return int(jax.process_index() == 0)


def _fits(array: np.ndarray, spec: tuple[Any, ...]) -> bool:
    return array.ndim >= len(spec) and all(n % jax.process_count() == 0 for n in array.shape)


def _rules(places: dict[str, NamedSharding]) -> Iterator[tuple[str, NamedSharding]]:
    yield from ((f"^{name}$", place) for name, place in places.items())


def replicated(directory: str) -> dict[str, Any]:
    """How many bytes this process writes of trees that all have: large, middling, small."""
    sizes: dict[str, list[tuple[int, ...]]] = {
        "one array": [(3000, 1000)],
        "some": [(700, 250)] * 10,
        "many": [(1000,)] * 200,
    }
    written: dict[str, Any] = {}
    with CheckpointManager(directory, coordinator=Coordinator(timeout=20)) as manager:
        for step, (name, shapes) in enumerate(sizes.items()):
            leaves = [put(np.ones(shape, np.float32)) for shape in shapes]
            future = manager.save(step, leaves)
            total = manager.info(step).nbytes if future.result() else 0
            written[name] = [future.progress.bytes_done, total]
    return written


def unclosed(directory: str) -> dict[str, Any]:
    """Save and end without closing: the interpreter's exit waits for it."""
    manager = CheckpointManager(directory, coordinator=Coordinator(timeout=20))
    for step in range(3):
        manager.save(step, tree())
    return {}


def overhead(directory: str) -> dict[str, Any]:
    """How long small saves take, and steps that are not due; for the benchmark."""
    seconds = []
    when = Every(steps=10**6)
    with CheckpointManager(directory, when=when, coordinator=Coordinator(timeout=20)) as manager:
        for step in range(40):
            began = time.perf_counter()
            manager.save(step, {"n": np.arange(1000.0), "step": step}).result()
            seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        for step in range(1001, 2001):
            manager.should_save(step)
        return {"save": seconds, "should_save": (time.perf_counter() - began) / 1000}


def own(directory: str) -> dict[str, Any]:
    """Values of one's own of every kind: none at all, fewer than the other, on own devices."""
    me = jax.process_index()
    found: dict[str, Any] = {}
    devices = Mesh(np.array(jax.local_devices()), ("d",))
    place = NamedSharding(devices, PartitionSpec("d"))
    mine = np.arange(8) + 100 * me
    values: list[Any] = [
        {"a": 1} if me else {},
        {} if me else {"a": 1},
        [np.arange(4)] * me,
        None,
        jax.device_put(mine, place),
    ]
    with CheckpointManager(directory, coordinator=Coordinator(timeout=10)) as manager:
        for step, value in enumerate(values[:-1]):
            manager.save(step, {"own": PerProcess(value), "n": step}).result()
            back = manager.restore(step)
            found[str(step)] = repr(back["own"].value) == repr(value) and back["n"] == step
        manager.save(9, {"own": PerProcess(values[-1])}).result()
        for like in (None, {"own": PerProcess(values[-1])}):
            array = manager.restore(9, like)["own"].value
            found[f"devices {like is None}"] = (
                array.sharding == place and np.asarray(array).tolist() == mine.tolist()
            )
    return found


def fallback(directory: str) -> dict[str, Any]:
    """Go back over what only one process finds damaged; delete, roll back and save it again."""
    leaves = {"w": put(np.arange(1.0 * MIB, dtype=np.float32).reshape(1024, 1024), "x")}
    found: dict[str, Any] = {}
    with CheckpointManager(directory, coordinator=Coordinator(timeout=20)) as manager:
        for step in (1, 2, 3, 4):
            manager.save(step, leaves).result()
        if jax.process_index() == 0:
            # In the part that the last process alone reads.
            path = max(Path(directory, "step-00000004/arrays/w").glob("c.*"))
            path.write_bytes(bytes(path.stat().st_size))
        found["resumed"] = manager.resume(leaves)[0]
        found["known"] = [manager.latest_step(), manager.all_steps()]
        manager.save(4, leaves).result()
        found["again"] = manager.all_steps()
        manager.delete(3)
        found["deleted"] = manager.all_steps()
        found["back"] = manager.rollback(1)
        found["left"] = manager.all_steps()
        found["held"] = failed(partial(manager.rollback, 7))[0]
        manager.save(2, leaves).result()
        found["after"] = manager.all_steps()
    return found


def few(directory: str) -> dict[str, Any]:
    """A mesh on the devices of two of three processes: saved, restored, broadcast."""
    on = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    leaves = {"w": put(array, None, "y", on=on), "r": put(array, on=on)}
    with CheckpointManager(directory, coordinator=Coordinator(timeout=20)) as manager:
        manager.save(1, leaves).result()
        return {
            str(how): all(equal(back, array) for back in manager.restore(1, broadcast=how).values())
            for how in (False, True)
        }


# Refusing


def refusals(directory: str) -> dict[str, Any]:
    """Everything that processes can get wrong between them, each followed by a good save."""
    me = jax.process_index()
    found: dict[str, Any] = {}
    here = jax.device_put(jnp.ones(3), jax.local_devices()[0])
    cases: dict[str, Callable[[int], tuple[int, object]]] = {
        "a value differs": lambda step: (step, {"a": me, "b": 1}),
        "numpy contents differ": lambda step: (step, {"a": np.full(3, me)}),
        "a leaf is missing": lambda step: (step, {"a": 1, **({"b": 2} if me else {})}),
        "a shape differs": lambda step: (step, {"a": np.zeros(3 + me)}),
        "containers differ": lambda step: (step, [1] if me else (1,)),
        "a host-local array": lambda step: (step, {"model": {"w": here}}),
        "a leaf of one cannot be stored": lambda step: (step, {"f": print if me else 3}),
        "a global array as one's own": lambda step: (step, {"p": PerProcess(put(np.ones(8), "x"))}),
        "steps differ": lambda step: (step + me, {"a": 1}),
    }
    with CheckpointManager(directory, coordinator=Coordinator(timeout=3)) as manager:
        for number, (name, case) in enumerate(cases.items()):
            step, leaves = case(10 * number + 10)
            error = failed(partial(_save, manager, step, leaves))
            good = manager.save(10 * number + 19, {"a": 1}).result()
            found[name] = [error, good is not None]
        if me == 0:
            found["alone"] = failed(lambda: manager.save(200, {"a": 1}).result())
        manager.save(201, {"a": 1}).result()
        found["steps"] = manager.all_steps()
    found["directories"] = failed(
        lambda: CheckpointManager(f"{directory}-{me}", coordinator=Coordinator(timeout=3))
    )
    return found


def _save(manager: CheckpointManager, step: int, leaves: object) -> object:
    return manager.save(step, leaves).result()


def late(directory: str) -> dict[str, Any]:
    """Errors that only one process has, where the others have begun or wait already."""
    me = jax.process_index()
    setattr(one_tree, "Coordinator", partial(Coordinator, timeout=10))  # noqa: B010  # shorter
    os.makedirs(directory, exist_ok=True)
    found: dict[str, Any] = {}
    found["function"] = failed(lambda: ckptmgr.save(f"{directory}/one", {"f": print if me else 3}))
    futures = [ckptmgr.save_async(f"{directory}/{name}", {"n": name}) for name in "abcd"]
    found["side by side"] = [failed(future.result)[0] for future in futures]
    options = [("z", ckptmgr.LeafOptions(dtype="float16"))]
    with CheckpointManager(
        f"{directory}/run",
        in_flight_bytes="4MiB",
        leaf_options=options,
        coordinator=Coordinator(timeout=10),
    ) as manager:
        large, small = np.ones((64, 1 << 18), np.float32), np.ones((1 << 10, 1 << 10), np.float32)
        wrong = small.copy()
        wrong[-1, -1] = 1e30  # too large for what it is to be stored as; in the last process
        manager.save(1, {"a": large, "z": put(small, "x")}).result()
        found["restore"] = failed(lambda: manager.restore(1, casting="no" if me else "nothing"))
        found["planning"] = failed(
            partial(_save, manager, 2, {"a": print if me else 1, "z": put(small, "x")})
        )
        found["snapshot"] = failed(partial(_save, manager, 3, {"a": large, "z": put(wrong, "x")}))
        began = time.monotonic()
        manager.wait()
        found["waits"] = time.monotonic() - began > 5
        found["next"] = failed(partial(_save, manager, 4, {"a": 1, "z": put(small, "x")}))[0]
    words: tuple[Literal["skip", "replace"], ...] = ("skip", "replace")
    for on_busy in words:
        with CheckpointManager(
            f"{directory}/{on_busy}",
            on_busy=on_busy,
            coordinator=Coordinator(timeout=10),
        ) as manager:
            for victim in (0, 1):
                leaves = {"a": print if me == victim else 1}
                found[f"{on_busy} {victim}"] = failed(partial(_save, manager, 1, leaves))[:2]
            found[f"{on_busy} next"] = failed(partial(_save, manager, 1, {"a": 1}))[0]
    return found


def functional(directory: str) -> dict[str, Any]:
    """The functions save and load with several processes: to one path, over it, and merged."""
    one = f"{directory}/one"
    os.makedirs(directory, exist_ok=True)
    ckptmgr.save(one, tree())
    found: dict[str, Any] = {"saved": all_equal(ckptmgr.load(one))}
    ckptmgr.save(one, {"a": put(np.arange(8.0), "x"), "b": None}, overwrite=True)
    ckptmgr.save(one, {"a": None, "b": put(np.arange(2.0 * MIB), "x")}, merge=True)
    merged = ckptmgr.load(one)
    found["merged"] = equal(merged["a"], np.arange(8.0, dtype=np.float32)) and equal(
        merged["b"], np.arange(2.0 * MIB, dtype=np.float32)
    )
    found["left"] = sorted(os.listdir(directory))
    return found


def contract() -> dict[str, Any]:
    """Hold jax's client to the contract, in process 0."""
    client = JaxClient()
    held = CONTRACT if client.index == 0 else []
    for part in held:
        part(client)
    return {"held": len(held), "who": [client.index, client.count]}


# Deciding together


def busy(directory: str) -> dict[str, Any]:
    """Skipping, replacing and saving when idle, where one process is slower than the other."""
    found: dict[str, Any] = {}
    words: tuple[Literal["skip", "replace"], ...] = ("skip", "replace")
    for on_busy in words:
        storage = Slow(f"{directory}-{on_busy}")
        with CheckpointManager(
            storage.root,
            storage=storage,
            on_busy=on_busy,
            coordinator=Coordinator(timeout=20),
        ) as manager:
            futures = []
            for step in range(12):
                time.sleep(0.01 * (jax.process_index() + 1))
                futures.append(manager.save(step, {"n": np.arange(3)}))
            manager.wait()
            found[on_busy] = [str(future.state) for future in futures]
            found[f"{on_busy} steps"] = manager.all_steps()
    storage = Slow(f"{directory}-idle")
    with CheckpointManager(
        storage.root, storage=storage, when=WhenIdle(), coordinator=Coordinator(timeout=20)
    ) as manager:
        due = []
        for step in range(60):
            time.sleep(0.004 * (jax.process_index() + 1))
            due.append(manager.should_save(step))
            if due[-1]:
                manager.save(step, {"n": 1})
        manager.wait()
        found["due"] = due
        found["forced"] = [
            manager.maybe_save(step, {"n": 1}, force=True) is not None for step in (59, 59, 70)
        ]
    return found


def quiet(directory: str) -> dict[str, Any]:
    """What a step that is not due costs: messages, and time."""
    sent = 0

    class Counting(JaxClient):
        def put(self, key: str, value: bytes) -> None:
            nonlocal sent
            sent += 1
            super().put(key, value)

        def get(self, key: str, seconds: float) -> bytes | None:
            nonlocal sent
            sent += 1
            return super().get(key, seconds)

    coordinator = Coordinator(timeout=20, client=Counting())
    with CheckpointManager(directory, when=Every(steps=10**6), coordinator=coordinator) as manager:
        sent = 0
        began = time.perf_counter()
        due = [manager.should_save(step) for step in range(1, 1001)]
        seconds = time.perf_counter() - began
        return {"due": any(due), "messages": sent, "ms": seconds}


def preemption(directory: str, at: str, victim: str) -> dict[str, Any]:
    """A loop until SIGTERM reaches one of the processes, at some place of it."""
    mine = jax.process_index() == int(victim)
    where = at if mine else ""
    step = 0

    def terminate(place: str) -> None:
        if place == where and step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    when = Every(steps=5) | OnPreemption()
    with CheckpointManager(directory, when=when, coordinator=Coordinator(timeout=30)) as manager:
        state = put(np.zeros(8, np.float32), "x")
        while step < 4000 and not manager.preempted:
            terminate("before the step")
            state = jax.block_until_ready(state + 1)
            step += 1
            terminate("after the step")
            future = manager.maybe_save(step, {"state": state, "step": step})
            if future is not None:
                terminate("while it saves")
            time.sleep(0.002)
        manager.wait()
        return {"ended": step, "preempted": manager.preempted, "latest": manager.latest_step()}


# Failing


class Slow(LocalStorage):
    """A store that takes its time, more in one process than in the other."""

    def free_bytes(self) -> int | None:
        """Called once a save, in process 0."""
        time.sleep(0.05)
        return super().free_bytes()


class Faulty(LocalStorage):
    """A store that fails at one stage: where it is told to, and how."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.stage = ""
        self.kind = ""

    def at(self, stage: str) -> None:
        """Fail here if that was asked for."""
        if stage != self.stage:
            return
        if self.kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        self.stage = ""
        if self.kind == "disk full":
            raise ckptmgr.NoSpace("no space left on device")
        raise ZeroDivisionError("a bug")

    def free_bytes(self) -> int | None:
        """The begin of a save, in process 0."""
        self.at("begin")
        return super().free_bytes()

    @contextmanager
    def attempt(self, name: str) -> Iterator[LocalAttempt]:
        """One that may fail as well."""
        with super().attempt(name) as attempt:
            yield _faulty(attempt, self.at)


def _faulty(attempt: LocalAttempt, at: Callable[[str], None]) -> LocalAttempt:
    put_, sync, publish = attempt.put, attempt.sync, attempt.publish
    share, join = attempt.share, attempt.join

    def faulty_put(path: str, parts: Any) -> None:
        data = path.rpartition("/")[2].startswith("c.")
        at("write" if data else "metadata")
        put_(path, parts)
        if data:
            at("written")

    def faulty_publish(record: Bytes, **options: Any) -> None:
        at("publish")
        publish(bytes(record), **options)
        at("published")

    def faulty_sync() -> None:
        at("sync")
        sync()

    def faulty_share() -> str:
        at("share")
        return share()

    def faulty_join(shared: str) -> None:
        at("join")
        join(shared)

    for name, method in {
        "put": faulty_put,
        "sync": faulty_sync,
        "publish": faulty_publish,
        "share": faulty_share,
        "join": faulty_join,
    }.items():
        setattr(attempt, name, method)
    return attempt


STAGES = {
    True: ["begin", "share", "write", "metadata", "written", "publish"],  # of process 0
    False: ["join", "write", "written", "sync"],  # of another
}


def failures(directory: str) -> dict[str, Any]:
    """Each kind of failure at each stage of each role, each followed by a save that works."""
    me, count = jax.process_index(), jax.process_count()
    storage = Faulty(directory)
    found: dict[str, Any] = {}
    step = 0
    leaves = {"w": put(np.ones((1024, 1024), np.float32), "x"), "n": np.arange(4)}
    with CheckpointManager(
        directory, storage=storage, coordinator=Coordinator(timeout=15)
    ) as manager:
        manager.save(0, leaves).result()
        for kind in ("disk full", "exception"):
            for leads, stages in STAGES.items():
                for number, stage in enumerate(stages):
                    victim = 0 if leads else 1 + number % (count - 1)
                    step += 2
                    storage.kind, storage.stage = kind, stage if me == victim else ""
                    error = failed(partial(_save, manager, step, leaves))
                    storage.stage = ""
                    good = failed(partial(_save, manager, step + 1, leaves))[0]
                    there = sorted(name for name in os.listdir(directory) if "step" in name)
                    gone = f"step-{step:08d}" not in there
                    found[f"{kind} at {stage} in {victim}"] = [error, good, gone, victim]
        manager.wait()
        found["latest"] = manager.latest_step()
    found["left"] = [name for name in os.listdir(directory) if name.startswith((".tmp", ".trash"))]
    return found


def killed(directory: str, stage: str, victim: str) -> dict[str, Any]:
    """A save that one process does not survive; the others say what they hear and leave."""
    mine = jax.process_index() == int(victim)
    storage = Faulty(directory)
    leaves = {"w": put(np.ones((1024, 1024), np.float32), "x"), "n": np.arange(4)}
    manager = CheckpointManager(directory, storage=storage, coordinator=Coordinator(timeout=3))
    manager.save(1, leaves).result()
    storage.kind, storage.stage = "killed", stage if mine else ""
    mark = os.open(f"{directory}.alive", os.O_RDWR | os.O_CREAT)  # until the process ends
    fcntl.flock(mark, fcntl.LOCK_SH)
    error = failed(lambda: manager.save(2, leaves).result())
    print("RESULT", json.dumps({"error": error}), flush=True)
    if jax.process_index() == 0:
        fcntl.flock(mark, fcntl.LOCK_EX)  # the others hear of it through this process
    os._exit(0)  # jax would wait for who is gone


# Broadcasting


def broadcast(directory: str) -> dict[str, Any]:
    """Restore by the first replica; say what was read and heard."""
    reads: list[str] = []

    class Counting(LocalStorage):
        def read_into(self, key: str, buffer: memoryview, **how: Any) -> None:
            reads.append(key)
            super().read_into(key, buffer, **how)

    heard: list[str] = []

    def hear(event: str, duration_secs: float, **kwargs: str | int) -> None:
        heard.append(event)

    jax.monitoring.register_event_duration_secs_listener(hear)
    names = "bool int8 uint8 uint16 int32 float16 float32 complex64 float64 int64 complex128"
    dtypes = [*map(np.dtype, names.split()), *(np.dtype(t) for t in (jnp.bfloat16, jnp.int4))]
    rng = np.random.default_rng(1)
    wanted: dict[str, np.ndarray] = {}
    saved: dict[str, Any] = {"host": np.arange(3), "python": 5}
    found: dict[str, Any] = {}
    with jax.enable_x64(True):
        for dtype in dtypes:
            for number, spec in enumerate([(), ("y",), (None, "y")]):
                bits = rng.integers(0, 256, (4, 4 * dtype.itemsize)).astype(np.uint8)
                array = (
                    (bits % 2).astype(dtype) if dtype.name in ("bool", "int4") else bits.view(dtype)
                )
                name = f"{dtype.name}-{number}"
                wanted[name], saved[name] = array, put(array, *spec)
        wanted["scalar"] = np.array(-0.0, np.float32)
        saved["scalar"] = put(wanted["scalar"])
        storage = Counting(directory)
        with CheckpointManager(
            directory, storage=storage, coordinator=Coordinator(timeout=20)
        ) as manager:
            manager.save(1, saved).result()
            restored = manager.restore(1, broadcast=True)
            found["equal"] = all(equal(restored[name], array) for name, array in wanted.items())
            found["placed"] = all(restored[n].sharding == saved[n].sharding for n in wanted)
            found["host"] = [restored["host"].tolist(), restored["python"]]
            found["heard"] = sorted({name for name in heard if "ckptmgr" in name})
            reads.clear()
            arrays = [name for name in wanted if "int4" not in name]
            step, again = manager.resume(saved, broadcast="x", select=arrays)
            found["resumed"] = step == 1 and all(equal(again[n], wanted[n]) for n in arrays)
            found["reads"] = len(reads)
            found["divided"] = failed(lambda: manager.restore(1, broadcast="y"))
            found["no axis"] = failed(lambda: manager.restore(1, broadcast="z"))
            crossed = mesh(across=False)
            places = [
                ("host|python", None),
                (".", NamedSharding(crossed, PartitionSpec())),
            ]
            found["half inside"] = failed(
                lambda: manager.restore(1, shardings=places, broadcast="x")
            )
            found["async"] = failed(lambda: manager.restore_async(1, broadcast=True))
            different = {
                **saved,
                "scalar": jax.ShapeDtypeStruct((), jnp.float16, sharding=saved["scalar"].sharding),
            }
            like = different if jax.process_index() else saved
            found["different"] = failed(lambda: manager.restore(1, like, broadcast=True))
            found["steps"] = failed(lambda: manager.restore(1 + jax.process_index()))
            if jax.process_index() == 0:
                next(Path(directory, "step-00000001/packs/0").glob("c.*")).write_bytes(b"")
            found["damaged"] = failed(lambda: manager.restore(1, broadcast=True))
    return found


def orbax(directory: str) -> dict[str, Any]:
    """Orbax writes from all processes, each into a directory of its own; all load it with us."""
    import orbax.checkpoint as ocp  # noqa: PLC0415  # of this program alone

    wanted = {name: array for name, array in values().items() if array.size}
    state = {name: put(array, *SPECS[name][2]) for name, array in wanted.items()}
    with ocp.CheckpointManager(directory) as manager:
        manager.save(3, args=ocp.args.StandardSave(state))
    found = ckptmgr.load(directory, like=state)
    with ckptmgr.CheckpointManager(f"{directory}-ours") as ours:
        fresh = jax.tree.map(jnp.zeros_like, state)
        step, resumed = ours.resume(fresh, import_from=directory)
    return {
        "equal": {name: equal(found[name], array) for name, array in wanted.items()},
        "resumed": [step, all(equal(resumed[name], array) for name, array in wanted.items())],
        "directories": sorted(
            name for name in os.listdir(f"{directory}/3/default") if "process" in name
        ),
    }


def main() -> None:
    """Join the job and run the program."""
    program, port, count, index, *args = sys.argv[1:]
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        num_processes=int(count),
        process_id=int(index),
        initialization_timeout=60,
        heartbeat_timeout_seconds=30,
        shutdown_timeout_seconds=30,
    )
    found = globals()[program](*args)
    print("RESULT", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
