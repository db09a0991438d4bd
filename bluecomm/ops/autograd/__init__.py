"""The part of the operations that autograd calls."""
