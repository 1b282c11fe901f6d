"""What many tests share. Eight CPU devices, asked for before jax starts."""

from __future__ import annotations

import os

os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_PLATFORMS"] = "cpu"

from pathlib import Path

import pytest


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run, not made yet."""
    return tmp_path / "run"
