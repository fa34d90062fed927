"""What a program meets besides tensors: files, data loaders, threads, other processes."""
