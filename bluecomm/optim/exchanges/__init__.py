"""Exchanges: how parameters are averaged, and with which weights in each round."""
