"""What grows from step to step in TensorFlow: who holds it, and which functions are traced anew."""
