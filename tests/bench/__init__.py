"""Measurements that need a rig of their own."""
