"""Hooks on modules and parameters: forward, backward, step and state dicts."""
