"""Runs the tests that torch ships for backends of torch.distributed on bluecomm."""
