"""A program run by a verb: its arguments, its execution in this process, what of it is measured."""
