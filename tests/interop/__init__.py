"""Other people's checkpoints, written by their own libraries."""
