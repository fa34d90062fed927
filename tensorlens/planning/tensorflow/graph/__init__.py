"""The graph of one train step: traced without data, and optimized as TensorFlow would."""
