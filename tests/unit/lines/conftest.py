from collections.abc import Iterator

import pytest
from bench import WAYS, Bench, FakeMemory


@pytest.fixture(params=WAYS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(request.param)
    yield made
    made.close()


@pytest.fixture
def memory(bench: Bench) -> FakeMemory:
    return bench.memory
