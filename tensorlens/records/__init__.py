"""What was seen: frozen dataclasses that import nothing but the standard library."""
