"""Starts the processes of a job and gathers what each has to say."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_SECONDS = 150


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(  # a job is told by these
    program: str,
    count: int,
    *args: object,
    devices: int = 2,
    ends: Sequence[int | None] | None = None,
) -> list[dict[str, Any]]:
    """What the processes of a program of `programs.py` return.

    Args:
      program: the name of the function.
      count: how many processes.
      args: what each is given, besides who it is.
      devices: of each process.
      ends: the exit codes that are asked for, None for any; without it 0 of all.
    """
    port = free_port()
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "XLA_FLAGS": "",
    }
    command = [sys.executable, "-m", "tests.multiprocess.programs", program, str(port), str(count)]
    started = [
        subprocess.Popen(
            [*command, str(index), *map(str, args)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    try:
        said = [process.communicate(timeout=_SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    found = []
    for process, (out, err), code in zip(started, said, ends or [0] * count, strict=True):
        assert code in (None, process.returncode), (
            f"exit {process.returncode}\n{out}\n{err[-6000:]}"
        )
        lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
        found.append(json.loads(lines[-1].removeprefix("RESULT ")) if lines else {})
    return found
