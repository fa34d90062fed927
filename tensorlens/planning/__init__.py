"""Planning before the run: whether it will fit, which option helps, what the input queue holds."""
