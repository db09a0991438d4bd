"""The ``survive`` benchmark."""
