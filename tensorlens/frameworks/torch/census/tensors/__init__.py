"""Torch's live tensors: found in the heap and in autograd's graph, read without running code."""
