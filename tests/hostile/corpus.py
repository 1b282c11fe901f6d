"""The corpus: every crafted input by its name. Importing a file of inputs puts them in."""

from __future__ import annotations

from tests.hostile import arrays, places, texts, trees
from tests.hostile.forging import CORPUS, Hostile, prepare

__all__ = ["CORPUS", "Hostile", "arrays", "places", "prepare", "texts", "trees"]
