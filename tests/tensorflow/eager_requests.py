"""Run as a program: makes eager tensors as standard input says, and prints what TensorFlow counts.

Requests: "shape KEY NUMBER" (a tensor of 4 bytes with that number), "filled KEY SHAPE" and "empty
KEY SHAPE" (of as many bytes as the tensor SHAPE says; an empty one is not written to), "del KEY",
"reset" (the peak). Answers: address, current, peak.
"""

import sys

import numpy as np
import tensorflow as tf


def tensor(what, number, held):
    if what == "shape":
        # made of a list: an array's memory may be taken over instead of copied
        return tf.constant([number], tf.int32)
    if what == "filled":
        return tf.raw_ops.Fill(dims=held[number], value=held[-1])
    return tf.raw_ops.Empty(shape=held[number], dtype=tf.uint8)


held = {-1: tf.constant(7, tf.uint8)}
for line in sys.stdin:
    what, *numbers = line.split()
    address = 0
    if what == "del":
        del held[int(numbers[0])]
    elif what == "reset":
        tf.config.experimental.reset_memory_stats("CPU:0")
    else:
        key, number = map(int, numbers)
        made = held[key] = tensor(what, number, held)
        address = np.frombuffer(made, np.uint8).ctypes.data
        del made
    info = tf.config.experimental.get_memory_info("CPU:0")
    print(address, info["current"], info["peak"])
