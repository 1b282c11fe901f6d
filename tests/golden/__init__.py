"""Golden checkpoints of each format version; they must load for ever."""
