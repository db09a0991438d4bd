"""Tests of the fake GPU, and of bluecomm over it; ``make fakegpu`` runs all of them."""
