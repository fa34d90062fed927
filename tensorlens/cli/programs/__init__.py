"""Programs that verbs run: how one is found, called, and profiled in part."""

from tensorlens.lazy import attach

attach(__name__, {"instrument": ()})
