"""Managers from TOML: every key, what is refused, and how it is said."""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from ckptmgr import (
    CheckpointManager,
    Every,
    InvalidOption,
    KeepLast,
    LeafOptions,
    MissingFile,
    ObjectStore,
    OnPreemption,
)
from ckptmgr.config import _TABLES, _Manager, read_config
from ckptmgr.errors import StorageError

CONFIGS = Path(__file__).parents[1] / "configs"
NOT_TEXT = {"self", "handlers", "on_event"}  # functions and objects


def written(tmp_path: Path, text: str) -> Path:
    """A file that says so."""
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_a_manager_is_made_as_the_file_says(tmp_path: Path, run: Path) -> None:
    """And what is given beside it wins."""
    path = written(
        tmp_path,
        f"""
        directory = "{run}"
        when = "Every(steps=2)"
        keep = "KeepLast(2)"
        in_flight_bytes = "64MiB"
        [[leaf_options]]
        match = "a"
        dtype = "float16"
        """,
    )
    with CheckpointManager.from_config(path) as manager:
        for step in range(1, 9):
            manager.maybe_save(step, {"a": np.ones(3, np.float32)})
        manager.wait()
        assert manager.all_steps() == [6, 8]
        assert manager.statistics().limit_bytes == 64 << 20
    with CheckpointManager.from_config(path, keep=KeepLast(1), read_only=True) as reader:
        assert reader.all_steps() == [6, 8]
    other = run.with_name("other")
    with CheckpointManager.from_config(path, directory=other) as manager:
        assert other.exists()


@pytest.mark.parametrize("name", ["local", "multiprocess", "object_store"])
def test_the_files_in_configs_are_read(name: str, run: Path) -> None:
    """Each as it is, and with the commented keys as well."""
    path = CONFIGS / f"{name}.toml"
    assert read_config(path)
    with CheckpointManager.from_config(path, directory=run, storage=None) as manager:
        manager.save(0, {"embed": np.ones(3), "opt_state": {"a": np.ones(2, np.float32)}}).result()
    text = re.sub(r"^# (?=\[|\w+ = )", "", path.read_text(), flags=re.MULTILINE)
    assert tomllib.loads(text).keys() <= set(_Manager.__struct_fields__)
    (run / "whole.toml").write_text(text)
    assert len(read_config(run / "whole.toml")) >= len(read_config(path))


def test_local_toml_names_every_option() -> None:
    """Whoever starts from it sees what there is."""
    text = (CONFIGS / "local.toml").read_text()
    for name in set(_Manager.__struct_fields__) - {"storage", "coordinator"}:
        assert name in text, name


def test_every_argument_of_a_manager_has_a_key() -> None:
    """But those that are no text; and the tables have what their classes take."""
    arguments = set(inspect.signature(CheckpointManager.__init__).parameters) - NOT_TEXT
    assert set(_Manager.__struct_fields__) == arguments
    for name, kind in {"storage": ObjectStore, "leaf_options": LeafOptions}.items():
        fields = {field.name for field in dataclasses.fields(kind)}
        assert set(_TABLES[name].__struct_fields__) - {"match"} == fields


def test_tables_become_what_the_manager_takes(tmp_path: Path) -> None:
    """Rules, stores and leaf options."""
    path = written(
        tmp_path,
        """
        when = "Every(steps=100) | OnPreemption()"
        [storage]
        endpoint = "https://minio.example.com:9000"
        deadline = 5
        [[leaf_options]]
        match = "x"
        write_chunk = [4, 2]
        own_array = true
        """,
    )
    assert read_config(path) == {
        "when": Every(steps=100) | OnPreemption(),
        "storage": ObjectStore(endpoint="https://minio.example.com:9000", deadline=5.0),
        "leaf_options": [("x", LeafOptions(write_chunk=(4, 2), own_array=True))],
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_pendin = 3", "max_pendin is no option; max_pending is; there are directory, when"),
        ("max_pending = 'x'", "max_pending: expected int, got str"),
        ("max_pending = true", "max_pending: expected int, got bool"),
        ("directory = 3", "directory: expected str, got int"),
        ("borrow = 1", "borrow: expected bool, got int"),
        ("on_busy = 'now'", "on_busy is 'wait', 'skip' or 'replace', not 'now'"),
        ("keep = 'KeepLas(3)'", "keep: 'KeepLas(3)' cannot be read: no rule is called KeepLas"),
        ("when = 'KeepLast(3)'", "when: 'KeepLast(3)' cannot be read: no rule is called KeepLast"),
        ("when = 'Every(steps=0)'", "when: 'Every(steps=0)' cannot be read: Every(steps=...)"),
        ("storage = 3", "storage: expected object, got int"),
        ("[storage]\nretry = 3", "storage.retry is no option; retries is; there are endpoint"),
        ("[storage]\ndeadline = -1", "storage: deadline is a number of seconds above 0"),
        ("[storage]\nendpoint = 'x'", "storage: endpoint is the URL of a host"),
        ("[coordinator]\ntimeout = 0", "coordinator: timeout is a number of seconds above 0"),
        ("[coordinator]", "coordinator: object missing required field timeout"),
        (
            "[[leaf_options]]\ndtype = 'int8'",
            "leaf_options[0]: object missing required field match",
        ),
        ("[[leaf_options]]\nmatch = 'a'\ndtype = 'int9'", "leaf_options: dtype is the name"),
        ("[[leaf_options]]\nmatch = 'a'\nchunks = 3", "leaf_options.chunks is no option"),
        ("max_pending == 3", "this is no TOML"),
        ("a = 1\na = 2", "this is no TOML"),
        ("\udcff", "this is no TOML"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(tmp_path: Path, text: str, words: str) -> None:
    """Before anything is opened; the file is named."""
    path = tmp_path / "run.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidOption, match=re.escape(words)) as caught:
        CheckpointManager.from_config(path, directory=tmp_path / "run")
    assert caught.value.file == str(path)
    assert not (tmp_path / "run").exists()


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Missing, a directory, or without a directory of its own."""
    with pytest.raises(MissingFile, match="no such configuration"):
        CheckpointManager.from_config(tmp_path / "absent.toml")
    with pytest.raises(StorageError, match="Is a directory"):
        CheckpointManager.from_config(tmp_path)
    with pytest.raises(InvalidOption, match="names no directory"):
        CheckpointManager.from_config(written(tmp_path, ""))
