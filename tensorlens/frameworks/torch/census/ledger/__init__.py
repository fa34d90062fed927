"""Ledgers of devices: the allocator's blocks against the tensors in them."""
