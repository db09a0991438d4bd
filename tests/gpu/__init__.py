"""What needs a GPU: make test-gpu."""
