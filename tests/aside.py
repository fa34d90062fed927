"""Libraries that tests do as well without seeing: each look at the heap is as long as it."""

import contextvars
import ctypes
import gc
import importlib
import importlib.util
import sys

_COUNT = gc.get_freeze_count


def set_libraries_aside(*names):
    """Hide what libraries keep from the collector, and so from each look at the heap."""
    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    gc.collect()
    # a program may put its own in here
    shown = [vars(sys), *(each for each in gc.get_objects() if type(each) is contextvars.Context)]
    gc.freeze()
    for each in map(ctypes.py_object, shown):
        ctypes.pythonapi.PyObject_GC_UnTrack(each)
        ctypes.pythonapi.PyObject_GC_Track(each)
    # no program did this, and to count them takes as long as to look at them
    gc.get_freeze_count = lambda: 0


def take_libraries_back():
    """Show what was set aside."""
    gc.unfreeze()
    gc.get_freeze_count = _COUNT
