"""Live tensors by name, the ledger that balances, and what changed."""
