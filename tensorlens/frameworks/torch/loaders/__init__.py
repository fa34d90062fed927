"""The input queue of torch's DataLoader."""

from tensorlens.lazy import attach

attach(__name__, {"data_loader": ("look_at_iterator",)})
