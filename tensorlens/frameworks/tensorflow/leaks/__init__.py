"""Growth in TensorFlow: who holds it, and which functions are traced anew."""
