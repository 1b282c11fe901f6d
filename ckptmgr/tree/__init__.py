"""What is in memory: leaves, the structure around them, their shardings."""
