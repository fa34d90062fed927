"""What tensors are alive, and what is known of each."""
