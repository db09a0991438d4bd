"""Measures torch.distributed over bluecomm and over gloo, in the same processes."""
