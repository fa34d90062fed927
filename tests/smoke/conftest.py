"""Programs that a call starts in processes of their own find torch imported there already."""

from __future__ import annotations

import pytest

from tensorlens.frameworks.torch import installed_release
from tensorlens.planning import processes
from tensorlens.planning.torch import SINCE
from tests import warm


@pytest.fixture
def warm_interpreters(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    has_cards = installed_release() >= SINCE
    monkeypatch.setattr(processes, "interpreter", lambda: warm.python(device=has_cards))
