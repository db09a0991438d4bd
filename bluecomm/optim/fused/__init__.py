"""Fused optimizers: one step on flat memory instead of one step per parameter."""
