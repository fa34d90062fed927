"""Host memory that grows and holds no tensors."""
