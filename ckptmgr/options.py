"""Options: what a caller may write, made into what the code works with, or refused by name."""

from __future__ import annotations

import jax

from ckptmgr.errors import InvalidOption
from ckptmgr.limiter import ByteLimiter, default_limit, parse_bytes


def limiter(in_flight_bytes: int | str | ByteLimiter | None) -> ByteLimiter:
    """The limiter that the option asks for."""
    if isinstance(in_flight_bytes, ByteLimiter):
        return in_flight_bytes
    if in_flight_bytes is None:
        return ByteLimiter(default_limit(on_cpu=jax.default_backend() == "cpu"))
    return ByteLimiter(parse_bytes(in_flight_bytes, "in_flight_bytes"))


def pack_size(pack_below: int | str) -> int:
    """The bytes under which arrays are packed."""
    size = parse_bytes(pack_below, "pack_below", least=0)
    require(size <= 16 << 20, "pack_below", "at most 16MiB", pack_below)
    return size


def count(value: object, option: str) -> int:
    """A number of things, 0 or more."""
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    require(good, option, "an integer of at least 0", value)
    assert isinstance(value, int)
    return value


def require(condition: object, option: str, allowed: str, value: object) -> None:
    """Refuse an option's value, saying what is allowed, unless `condition`."""
    if not condition:
        raise InvalidOption(f"{option} is {allowed}, not {value!r}")
