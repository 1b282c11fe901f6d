"""Trainers to start from."""
