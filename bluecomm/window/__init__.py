"""Windows: memory that neighbors put into and read from, without this rank's action."""
