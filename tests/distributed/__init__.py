"""Agreeing: the key-value stores, the rounds, and what is announced."""
