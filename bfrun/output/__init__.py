"""What the user sees of the ranks: their output, and the last report."""
