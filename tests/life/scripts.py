"""Scripts in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def script(text: str, run: Path, *arguments: object, seconds: float = 120) -> str:
    """What a Python script prints, which is given the directory; it must end well in time."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(text), str(run)]
        + [str(argument) for argument in arguments],
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return ended.stdout
