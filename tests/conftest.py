"""What holds for all tests."""

import signal

# What a shell starts in the background ignores Ctrl-C, and so would what is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
