"""Control frames: one module for each route, with the classes of its frames.

A control frame is a JSON object whose key "type" names its class. ``python -m
bfrun.frames`` prints the table of docs/control-plane.md.

Part of the agent: standard library only, Python 3.8.
"""
