"""Steps of a loop, and the Python objects that keep blocks of torch's memory alive."""
