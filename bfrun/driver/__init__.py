"""The driver: runs one job, from its plan to its verdict."""
