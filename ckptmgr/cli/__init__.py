"""The command line: `ckptmgr ls RUN` and the like; needs the extra `cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that the arguments of the process ask for, and exit with its code."""
    try:
        from ckptmgr.cli.app import run  # noqa: PLC0415  # of an extra
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "click", "rich"):
            raise
        sys.exit("ckptmgr: the command line needs more: pip install 'ckptmgr[cli]'")
    sys.exit(run(sys.argv[1:]))
