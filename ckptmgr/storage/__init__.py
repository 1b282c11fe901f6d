"""Where bytes live: a small protocol, and the stores that speak it."""
