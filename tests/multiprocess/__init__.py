"""Several real processes under jax.distributed on one machine."""
