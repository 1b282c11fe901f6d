"""The suites of the manager on object stores: what holds on a disk holds there.

They run in a process of their own, where `run` is a prefix of a bucket. `make test-stores`
runs all of each; `make test` those of retention, cadence, a busy queue and parts of trees.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FULL = os.environ.get("CKPTMGR_STORES") == "all"
SUITES = (
    "tests/test_manager.py",
    "tests/test_functional.py",
    "tests/test_shardings.py",
    "tests/pipeline/test_select.py",
)
# These look at the directory, or at how local files are written.
LOCAL = (
    "test_overwrite_replaces_a_step",
    "test_commit_times_never_go_back",
    "test_a_full_disk_fails_one_save_and_the_next_succeeds",
    "test_a_save_that_fails_in_the_trainers_thread_leaves_nothing",
    "test_one_tree_of_several_is_loaded_alone_and_reads_only_its_bytes",
    "test_scattered_leaves_are_read_one_by_one",
    "test_a_replicated_array_is_read_once",
    "test_two_hundred_trees",  # it takes a minute of requests
)
PART = "retention or best or cadence or at_and or below or resume or select or read or selected"
_LEAST = 100 if FULL else 15


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_the_suites_of_the_manager_pass(kind: str) -> None:
    """Those tests that look at local files skip."""
    chosen = " and ".join(f"not {name}" for name in LOCAL)
    if not FULL:
        chosen = f"({PART}) and {chosen}"
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITES, "-k", chosen],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "CKPTMGR_STORE": kind},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-4000:]
    passed = re.search(r"(\d+) passed", finished.stdout)
    assert passed is not None
    assert int(passed[1]) >= _LEAST, finished.stdout[-500:]
