"""The pre-flight: checks whether a job can run on its hosts."""
