"""Patches for what a program meets besides tensors: files, loaders, threads, other processes."""
