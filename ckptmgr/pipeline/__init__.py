"""How bytes move: plan, snapshot, write, commit; read, restore."""
