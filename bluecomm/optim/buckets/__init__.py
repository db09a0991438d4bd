"""Buckets: which parameters share a flat buffer, and what is stored with each."""
