"""The agent, on each machine: standard library only, Python 3.8."""
