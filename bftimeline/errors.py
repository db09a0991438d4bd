"""Errors of reading what ranks have recorded."""


class TraceError(ValueError):
    """Bytes that are no trace, or not the whole of one."""
