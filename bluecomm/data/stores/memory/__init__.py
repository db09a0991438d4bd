"""The store in memory that all processes of a machine share."""
