"""A stretch between two calls has its own peaks, and lines within and around it keep theirs."""

from bench import Bench, FakeFramework, FakeMemory

from tensorlens.lines import DeviceLevel, LineMemory, MeasuredRegion


def test_a_read_has_the_peak_since_the_one_before(bench: Bench, memory: FakeMemory) -> None:
    span = MeasuredRegion(bench.engine)
    memory.spike(900)
    span.begin()
    memory.allocate(10)
    memory.spike(5)
    assert span.read() == [DeviceLevel("cpu", 10, 15, 900)]
    memory.free(4)
    assert span.read() == [DeviceLevel("cpu", 6, 10, 900)]
    span.end()
    assert span.read() == []
    assert bench.is_idle()


def test_lines_within_do_not_take_its_peak(bench: Bench, memory: FakeMemory) -> None:
    @bench.profile
    def step() -> None:
        memory.spike(70)  # A
        memory.allocate(1)  # B
        memory.spike(7)  # C

    span = MeasuredRegion(bench.engine)
    span.begin()
    step()
    # 70 at line A; what is allocated is what B left
    (level,) = span.read()
    assert (level.allocated, level.peak) == (1, 70)
    span.end()
    assert bench.peaks("A", "B", "C") == [70, 1, 8]
    assert bench.is_idle()


def test_a_line_around_it_keeps_its_peak(bench: Bench, memory: FakeMemory) -> None:
    span = MeasuredRegion(bench.engine)

    def loop() -> None:
        memory.spike(50)
        span.begin()
        memory.spike(80)
        span.read()
        memory.allocate(3)
        span.read()
        span.end()

    @bench.profile
    def outer() -> None:
        loop()  # A
        memory.allocate(1)  # B

    outer()
    assert bench.at("A") == LineMemory(3, 80, 80, 3, 3, 3)
    assert bench.at("B").peak == 4
    assert bench.is_idle()


def test_an_exception_ends_it_for_the_line_around(bench: Bench, memory: FakeMemory) -> None:
    span = MeasuredRegion(bench.engine)

    def loop() -> None:
        span.begin()
        memory.spike(80)
        span.read()
        raise ValueError("stop")

    @bench.profile
    def outer() -> None:
        try:
            loop()  # A
        except ValueError:
            pass
        memory.allocate(1)  # B

    outer()
    span.end()
    assert bench.at("A").peak == 80
    assert bench.at("B").peak == 1
    assert bench.is_idle()


def test_devices_that_come_into_use_follow(bench: Bench, memory: FakeMemory) -> None:
    cuda = FakeMemory("cuda:0")
    fake = FakeFramework(cuda, cpu=memory)
    bench.frameworks = [fake]
    span = MeasuredRegion(bench.engine)
    assert span.begin() == [DeviceLevel("cpu", 0, 0, 0)]
    fake.used.append("cuda:0")
    cuda.allocate(12)
    assert span.read() == [DeviceLevel("cpu", 0, 0, 0), DeviceLevel("cuda:0", 12, 12, 12)]
    assert [counter.device for counter in span.counters] == ["cpu", "cuda:0"]
    span.end()


def test_a_framework_is_taken_up_while_a_stretch_is_on(bench: Bench, memory: FakeMemory) -> None:
    card = FakeMemory("cuda:0")

    @bench.profiler
    def step(nbytes: int) -> None:
        card.allocate(nbytes)  # A

    span = MeasuredRegion(bench.engine)
    span.begin()
    step(0)
    late = FakeFramework(card)
    late.used.append("cuda:0")
    card.allocate(5)
    bench.frameworks.append(late)
    step(30)
    assert bench.at("A", "cuda:0") == LineMemory(35, 35, 35, 30, 30, 30)
    assert span.read() == [DeviceLevel("cpu", 0, 0, 0), DeviceLevel("cuda:0", 35, 35, 35)]
    assert bench.profiler.result().notes == ()
    span.end()
