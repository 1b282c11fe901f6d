"""How thorough: a part of every suite in `make test`, all of it in `make test-faults`."""

from __future__ import annotations

import os

import pytest

THOROUGH = os.environ.get("CKPTMGR_FAULTS") == "all"


@pytest.fixture
def every() -> int:
    """Each how-many-th position is tried."""
    return 1 if THOROUGH else 6


@pytest.fixture
def cycles() -> int:
    """How often a process is killed at random."""
    return 1000 if THOROUGH else 8


@pytest.fixture
def flips() -> int:
    """How many bits are flipped."""
    return 10_000 if THOROUGH else 400


@pytest.fixture
def cuts() -> int:
    """How often the power is cut, on each file system."""
    return 300 if THOROUGH else 4


@pytest.fixture
def states() -> int:
    """How many states that a cut may leave are tried of each operation."""
    return 1000 if THOROUGH else 40
