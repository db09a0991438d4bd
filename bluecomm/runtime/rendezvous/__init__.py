"""Rendezvous: how the ranks of a job find one another under each launcher."""
