"""Collectives that go on without lost ranks: transactions, epochs and their ledger."""
