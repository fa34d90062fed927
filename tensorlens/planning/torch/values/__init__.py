"""Answers to programs that ask for the values of tensors without any."""
