"""Tensors in the memory of a device, such as a GPU."""
