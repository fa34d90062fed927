"""Programs that a call starts in processes of their own find torch imported there already."""

from __future__ import annotations

import pytest

from tensorlens.frameworks.torch.fake.device.library import SINCE
from tensorlens.frameworks.torch.release import installed_release
from tensorlens.planning.compare import launching
from tensorlens.planning.estimate import worker
from tests import warm


@pytest.fixture
def warm_interpreters(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    has_cards = installed_release() >= SINCE
    monkeypatch.setattr(worker, "interpreter", lambda: warm.python(fakes=True, device=has_cards))
    monkeypatch.setattr(launching, "interpreter", lambda: warm.python(fakes=True))
