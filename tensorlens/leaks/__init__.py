"""Growth from step to step, and who holds it."""
