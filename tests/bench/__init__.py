"""Measurements on hosts and links that are simulated by network namespaces."""
