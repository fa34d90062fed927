"""C++ sources of the native parts, and their compilation on first use."""
