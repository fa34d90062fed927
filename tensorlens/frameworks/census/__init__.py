"""What the looks of every framework at its live tensors have in common."""
