"""Graphs that run without data: their nodes, what each one computes and keeps, what it requests."""
