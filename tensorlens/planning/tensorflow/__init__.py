"""Estimates a Keras model's training step from its graph alone."""
