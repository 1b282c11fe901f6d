"""Saving and loading on the hosts of the devices, where one controller holds them all."""

from ckptmgr.colocated.dispatcher import Dispatcher

__all__ = ["Dispatcher"]
