"""Values of tensors without data: those that follow from the program, and assumed ones."""
