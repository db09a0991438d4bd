"""Autotuning: measures settings while the model trains, and keeps the fastest."""
