"""A train step of a Keras model without its data.

Unlike ``frameworks/keras`` it runs Keras's own code, where it is imported already.
"""
