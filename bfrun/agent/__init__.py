"""The agent that runs on each machine: standard library only, Python 3.8."""
