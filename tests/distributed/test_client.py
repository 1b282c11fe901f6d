"""The key-value stores: the fake does what jax.distributed's does."""

from __future__ import annotations

from collections.abc import Callable

import jax
import pytest

from ckptmgr import InvalidOption
from ckptmgr.distributed.client import Client, JaxClient
from ckptmgr.distributed.memory import MemoryClient, MemoryStore
from tests.distributed.contract import CONTRACT
from tests.multiprocess.launch import launch


@pytest.mark.parametrize("holds", CONTRACT)
def test_the_fake_keeps_the_contract(holds: Callable[[Client], None]) -> None:
    """Each part of it."""
    holds(MemoryClient(MemoryStore(), 0, 1))


def test_jax_keeps_the_contract() -> None:
    """With its private client, so this fails when JAX moves it."""
    said = launch("contract", 2, devices=1)
    assert said == [{"held": len(CONTRACT), "who": [0, 2]}, {"held": 0, "who": [1, 2]}]


def test_several_processes_without_jax_distributed_are_told_what_to_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a pod where nobody initialised it."""
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    with pytest.raises(InvalidOption, match=r"jax\.distributed\.initialize"):
        JaxClient()
