"""Records: frozen dataclasses that several rooms share, and what reads them from files."""
