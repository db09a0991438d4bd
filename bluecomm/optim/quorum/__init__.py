"""Outer steps that a quorum of the ranks is enough for; see docs/optimizer.md."""
