"""What Keras's objects hold and what it is called: the same on every backend.

Nothing here imports Keras, nor runs any code of its objects: their attributes are read.
"""
