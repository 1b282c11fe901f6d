"""Other people's checkpoints, one file a format: opened as if they were ours.

Each format makes a manifest of what it finds, in which every array is one whole, and a
source for each of these arrays. What is done with a manifest, matching, selecting,
placing, goes the way of our own checkpoints.
"""
