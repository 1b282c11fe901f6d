"""What every client must do; the fake and jax.distributed's are held to the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ckptmgr.distributed.client import Client


def gives_back_what_was_put(client: Client) -> None:
    """Bytes of any content, none included."""
    for value in (b"", b"\0\xff", b"x" * (8 << 20)):
        client.put("contract/a", value)
        assert client.get("contract/a", 0) == value
    client.delete("contract/a")


def puts_over_what_is_there(client: Client) -> None:
    """The last one counts."""
    client.put("contract/b", b"1")
    client.put("contract/b", b"2")
    assert client.get("contract/b", 1) == b"2"
    client.delete("contract/b")


def says_none_for_what_is_not_there(client: Client) -> None:
    """After the time it was given, and for what was deleted."""
    assert client.get("contract/none", 0) is None
    began = time.monotonic()
    assert client.get("contract/none", 0.1) is None
    assert time.monotonic() - began >= 0.05
    client.put("contract/c", b"1")
    client.delete("contract/c")
    client.delete("contract/c")
    assert client.get("contract/c", 0) is None


def waits_for_what_comes(client: Client) -> None:
    """Another thread puts it meanwhile."""
    found: list[bytes | None] = []
    waiting = threading.Thread(target=lambda: found.append(client.get("contract/d", 20)))
    waiting.start()
    client.put("contract/d", b"late")
    waiting.join(20)
    assert found == [b"late"]
    client.delete("contract/d")


CONTRACT: list[Callable[[Client], None]] = [
    gives_back_what_was_put,
    puts_over_what_is_there,
    says_none_for_what_is_not_there,
    waits_for_what_comes,
]
