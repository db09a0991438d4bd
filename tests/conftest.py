"""Settings of all tests."""

import signal

# A process that a shell starts in the background ignores SIGINT; so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
