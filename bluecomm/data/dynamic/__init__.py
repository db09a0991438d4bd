"""The dynamic partition: ranks lease blocks of an epoch from a ledger they share."""
