"""Names and queues of Keras's objects, the same on every backend.

Nothing here imports Keras, nor runs any code of its objects: their attributes are read.
"""
