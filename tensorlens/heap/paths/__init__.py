"""Finds the paths that keep an object alive, each from a root that a person can act on.

The collector is asked, level by level, who refers to what: nothing of the objects is run, nothing
is kept, and what comes back is text. Not seen are references of what the collector does not
track: C++, and NumPy's arrays (an object's count of references tells that there are some), and
what ``gc.freeze()`` hid.
"""

from tensorlens.heap.paths.reference_paths import cycle, reference_paths
from tensorlens.heap.paths.search import UNSEEN

__all__ = ["UNSEEN", "cycle", "reference_paths"]
