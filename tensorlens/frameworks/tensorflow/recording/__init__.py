"""Recordings of TensorFlow: the recorder, origins of graph nodes, gradients of eager code."""
