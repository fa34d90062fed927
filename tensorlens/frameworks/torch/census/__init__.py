"""Live tensors, and what is known of each."""
