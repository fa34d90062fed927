"""What a Keras model's training step asks of allocators, from its graph alone."""
