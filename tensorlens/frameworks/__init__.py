"""Where bytes are counted: the only room that knows torch or TensorFlow."""
