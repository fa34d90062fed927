"""Records: frozen dataclasses that import nothing but the standard library."""
