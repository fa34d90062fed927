"""Memory options of torch, applied to a step from outside."""
