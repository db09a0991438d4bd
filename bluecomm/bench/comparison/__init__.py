"""Trains small tasks with each algorithm and compares losses, bytes and times."""
