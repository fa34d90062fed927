"""Nodes of TensorFlow's graphs: which line, layer and forward operation each comes from."""
