"""Records what happens while the program runs: ``record()``, and what an out-of-memory shows."""
