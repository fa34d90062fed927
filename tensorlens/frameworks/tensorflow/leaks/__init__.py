"""Steps of a loop in TensorFlow, and the Python objects that keep blocks of its memory alive."""
