"""Starts the processes of a job and gathers what each has to say."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_SECONDS = 120
_PORTS = range(20_000, 30_000)  # none that the system gives to a connection meanwhile


def free_port() -> int:
    """One that nobody listens on now."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


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
        "PYTHONFAULTHANDLER": "1",
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
    wanted = ends or [0] * count
    with ThreadPoolExecutor(count) as threads:
        hearing = [
            threads.submit(_heard, *pair, started) for pair in zip(started, wanted, strict=True)
        ]
    said = [heard.result() for heard in hearing]
    found = []
    for process, (out, err), code in zip(started, said, wanted, strict=True):
        assert code in (None, process.returncode), (
            f"exit {process.returncode}\n{out}\n{err[-6000:]}"
        )
        lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
        found.append(json.loads(lines[-1].removeprefix("RESULT ")) if lines else {})
    return found


def _heard(
    process: subprocess.Popen[str], code: int | None, job: Sequence[subprocess.Popen[str]]
) -> tuple[str, str]:
    """What a process says until it ends. One that ends as it should not ends the whole job.

    The others would wait for it for minutes; and so they would where all wait for each other.
    """
    try:
        return process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler is on: it says where it stands
        return process.communicate()
    finally:
        if code not in (None, process.returncode):
            for other in job:
                other.kill()
