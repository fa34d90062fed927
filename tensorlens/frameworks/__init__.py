"""Adapters to torch and TensorFlow: they count bytes and name tensors."""
