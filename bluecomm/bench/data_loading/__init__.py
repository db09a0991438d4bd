"""What ``python -m bluecomm.bench data`` measures, a file per question."""
