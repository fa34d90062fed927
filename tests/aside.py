"""What tests do as well without seeing: each look at the heap is as long as it.

Libraries, what pytest keeps of thousands of tests, and what modules of tests that are done have
left behind.
"""

import contextvars
import ctypes
import gc
import importlib
import importlib.util
import sys
import types

_COUNT = gc.get_freeze_count


def set_libraries_aside(*names):
    """Hide what libraries keep from the collector, and so from each look at the heap."""
    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    gc.collect()
    _hide_all_but([])


def set_all_aside_but(module, kinds):
    """Hide all that is there by now but tensors and what a module of tests holds.

    Args:
        module: of tests, as collected by pytest.
        kinds: the classes of tensors, which are still found wherever they are.
    """
    gc.collect()
    there = gc.get_objects()
    _met.update(map(id, there))
    counted = [each for each in there if issubclass(type(each), kinds)]
    del there
    _hide_all_but([*_held_by(vars(module), _met), *counted])


_met = set()
"""Addresses of what there was when each module of tests began; it may be hidden since, and an empty
dict is not met before something is put into it."""


def take_libraries_back():
    """Show what was set aside."""
    gc.unfreeze()
    gc.get_freeze_count = _COUNT


def _hide_all_but(shown):
    # a program may put its own in here
    own = [vars(sys), *(each for each in gc.get_objects() if type(each) is contextvars.Context)]
    gc.freeze()
    for each in (*own, *shown):
        if gc.is_tracked(each):
            each = ctypes.py_object(each)
            ctypes.pythonapi.PyObject_GC_UnTrack(each)
            ctypes.pythonapi.PyObject_GC_Track(each)
    # no program did this, and to count them takes as long as to look at them
    gc.get_freeze_count = lambda: 0


def _held_by(top, among):
    """Return what a container leads to, without what is of tensorlens itself."""
    found, todo, known = [], [top], set()
    while todo:
        each = todo.pop()
        if id(each) in known or (id(each) not in among and each is not top):
            continue
        known.add(id(each))
        if not _is_ours(each):
            found.append(each)
            todo.extend(gc.get_referents(each))
    return found


def _is_ours(each):
    if issubclass(type(each), types.ModuleType):
        # one that is loaded when it is asked would be, or would refuse
        name = object.__getattribute__(each, "__dict__").get("__name__")
    elif issubclass(type(each), types.FunctionType) or type(each) is type:
        name = each.__module__
    else:
        return False
    return isinstance(name, str) and name.partition(".")[0] == "tensorlens"
