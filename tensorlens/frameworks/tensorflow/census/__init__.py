"""Live tensors of TensorFlow and Keras: found, read, named, and held against the allocators."""
