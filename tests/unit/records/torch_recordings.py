"""What torch wrote, as recordings."""

from tensorlens import Recording
from tensorlens.records import torch_files as foreign


def read(content):
    return Recording(*foreign.read(content))


def from_snapshot(snapshot, **options):
    return Recording(*foreign.from_snapshot(snapshot, **options))
