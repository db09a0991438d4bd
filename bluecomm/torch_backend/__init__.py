"""A backend of ``torch.distributed`` over the world of bluecomm."""
