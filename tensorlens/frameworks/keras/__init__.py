"""Names and queues of Keras's objects, the same on every backend.

Nothing here imports Keras or runs code of its objects: only attributes are read.
"""
