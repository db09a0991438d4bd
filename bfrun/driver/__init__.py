"""The driver: one running job, from its plan to its verdict."""
