"""The ``train`` benchmark."""
