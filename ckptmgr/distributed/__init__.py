"""How several processes agree: one key-value store, one kind of round over it."""
