"""Traces: what ranks record while they run, and the one timeline made of it."""
