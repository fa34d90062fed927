"""C++ sources of the native parts; ``build.py`` loads them, built before or on first use."""
