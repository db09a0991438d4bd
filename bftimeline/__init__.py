"""What ranks record, and the timeline that is made of it.

Below both the launcher and the library: standard library only. ``spool`` goes to hosts
with the launcher's agent, so it is written for Python 3.8.
"""
