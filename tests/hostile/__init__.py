"""Checkpoints from strangers: crafted inputs, mutations of honest ones, and what reads them."""
