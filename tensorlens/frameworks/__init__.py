"""Adapters: the room that counts bytes, and knows torch and TensorFlow."""
