"""What is on disk. Nothing here imports jax or does I/O."""
