"""Where ``CachedDataset`` keeps samples."""
