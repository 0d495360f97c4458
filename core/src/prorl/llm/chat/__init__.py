"""Conversations on token streams, and the ledger that the streams belong to."""
