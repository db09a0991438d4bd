"""The store in the memory of all machines of a job, of which each keeps a part."""
