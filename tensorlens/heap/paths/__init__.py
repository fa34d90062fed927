"""Paths of references that keep an object alive, each from a root that a person can act on.

The native reader finds the holders of objects, level by level. No code of the objects runs, no
object is kept, and the result is text. Three kinds of holders are not seen: C++ and NumPy
arrays, which the collector does not track (an object's reference count shows that there are
some), and objects hidden by ``gc.freeze()``.
"""

from tensorlens.heap.paths.reference_paths import cycle, reference_paths
from tensorlens.heap.paths.search import UNSEEN

__all__ = ["UNSEEN", "cycle", "reference_paths"]
