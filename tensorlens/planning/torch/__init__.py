"""A training step on a card that is not there: fake tensors on a CUDA device made of numbers."""
