"""`python -m ckptmgr.cli` is the command `ckptmgr`."""

from ckptmgr.cli import main

main()
