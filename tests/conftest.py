"""Settings of all tests."""

import signal

# A process that a shell starts in the background ignores SIGINT, and one that nohup
# starts ignores SIGHUP; so do their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
