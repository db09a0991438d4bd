"""Exchanges: the operations and weights that average parameters in each round."""
