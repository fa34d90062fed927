"""Counting allocators: what the native parts of all frameworks share, in C++ and in Python."""
