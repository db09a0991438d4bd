"""Checks that need a GPU, run by ``make test-gpu``."""
