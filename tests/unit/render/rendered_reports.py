"""Reports of every kind, written by hand."""

from __future__ import annotations

from collections.abc import Mapping

from tensorlens import LineReport
from tensorlens.lines import DeviceSource, FunctionLines, Line, LineMemory

KIB = 1024
MIB = 1024**2
GIB = 1024**3

CPU = DeviceSource("cpu", "counting allocator", "exact")
CUDA = tuple(
    DeviceSource(f"cuda:{index}", "CUDA caching allocator", "to 512 B") for index in range(8)
)


def moved(start: int, end: int, *, peak: int = 0, reserved: int = 0, hits: int = 1) -> LineMemory:
    """Figures of a line that takes a device from ``start`` to ``end`` on each of its hits."""
    net = end - start
    last = start + net * hits
    return LineMemory(
        allocated=max(end, last),
        peak=max(peak, start, end, last),
        reserved=reserved,
        net=net * hits,
        net_max=net,
        net_first=net,
    )


def function(
    lines: tuple[Line, ...], *, name: str = "forward", calls: int = 1, note: str | None = None
) -> FunctionLines:
    first = lines[0].lineno if lines else 1
    return FunctionLines(name, f"Net.{name}", "net", "net.py", first, calls, lines, note)


def report(
    *functions: FunctionLines,
    devices: tuple[DeviceSource, ...] = (CPU,),
    process: str | None = None,
    notes: tuple[str, ...] = (),
) -> LineReport:
    return LineReport(functions, devices, process=process, notes=notes)


def ran(
    lineno: int, source: str, memory: Mapping[str, LineMemory], *, hits: int = 1, ms: int = 1
) -> Line:
    return Line(lineno, source, hits, ms * 10**6, memory)


def empty() -> LineReport:
    return LineReport((), ())


def one_line() -> LineReport:
    lines = (
        Line(7, "    def forward(self, x):"),
        ran(8, "        return x + x", {"cpu": moved(MIB, 2 * MIB, reserved=300 * MIB)}),
    )
    return report(function(lines))


def training() -> LineReport:
    """A step with a loop, a comment that never runs, a peak and a growth on different lines."""
    lines = (
        Line(20, "    def forward(self, x):"),
        Line(21, "        # features"),
        ran(22, "        for block in self.blocks:", {"cpu": moved(64 * MIB, 64 * MIB)}, hits=4),
        Line(
            23,
            "            x = block(x)",
            3,
            4_500_000,
            {"cpu": LineMemory(94 * MIB, 96 * MIB, 500 * MIB, 30 * MIB, 20 * MIB, 6 * MIB)},
        ),
        ran(24, "        x = x.mean((2, 3))", {"cpu": moved(94 * MIB, 80 * MIB, peak=95 * MIB)}),
        Line(25, ""),
        ran(26, "        return self.head(x)", {"cpu": moved(80 * MIB, 80 * MIB + 512)}),
    )
    return report(function(lines, calls=1))


def eight_devices() -> LineReport:
    """cuda:0 and cuda:1 move, cuda:2 to cuda:6 move alike, cuda:7 and the CPU never do."""
    idle = {
        "cpu": moved(GIB, GIB, reserved=2 * GIB),
        "cuda:7": moved(512, 512, reserved=2 * MIB),
    }
    alike = [f"cuda:{index}" for index in range(2, 7)]
    lines = (
        Line(40, "def step(batch):"),
        ran(
            41,
            "    x = batch.to('cuda:0')",
            {
                "cuda:0": moved(0, 3 * MIB, reserved=20 * MIB),
                "cuda:1": moved(MIB, MIB, reserved=20 * MIB),
                **{name: moved(0, 0, reserved=20 * MIB) for name in alike},
                **idle,
            },
        ),
        ran(
            42,
            "    y = first(x).to('cuda:1')",
            {
                "cuda:0": moved(3 * MIB, 5 * MIB, peak=9 * MIB, reserved=20 * MIB),
                "cuda:1": moved(MIB, 2 * MIB, reserved=20 * MIB),
                **{name: moved(0, 0, reserved=20 * MIB) for name in alike},
                **idle,
            },
        ),
        ran(
            43,
            "    print('half way')",
            {
                "cuda:0": moved(5 * MIB, 5 * MIB, reserved=20 * MIB),
                "cuda:1": moved(2 * MIB, 2 * MIB, reserved=20 * MIB),
                **{name: moved(0, 0, reserved=20 * MIB) for name in alike},
                **idle,
            },
        ),
        ran(
            44,
            "    return gather(broadcast(y))",
            {
                "cuda:0": moved(5 * MIB, 4 * MIB, reserved=20 * MIB),
                "cuda:1": moved(2 * MIB, 2 * MIB, reserved=20 * MIB),
                **{name: moved(0, MIB, peak=2 * MIB, reserved=20 * MIB) for name in alike},
                **idle,
            },
        ),
    )
    return report(function(lines, name="step"), devices=(CPU, *CUDA))


def all_devices_apart() -> LineReport:
    """Every line moves each of eight devices by a different amount."""
    lines = [Line(10, "def replicate(self):")]
    for lineno in (11, 12):
        memory = {
            f"cuda:{index}": moved(lineno * GIB, lineno * GIB + (index - 3) * 10 * MIB)
            for index in range(8)
        }
        lines.append(ran(lineno, f"    self.shard({lineno})", memory))
    return report(function(tuple(lines), name="replicate"), devices=CUDA)


def unknown_figures() -> LineReport:
    device = DeviceSource(
        "mps",
        "Metal driver",
        "to the page",
        {"peak": "Metal keeps no peak", "reserved": "Metal keeps no peak"},
    )
    lines = (
        Line(1, "def f():"),
        ran(
            2, "    a = make()", {"mps": LineMemory(4 * KIB, None, None, 4 * KIB, 4 * KIB, 4 * KIB)}
        ),
    )
    return report(function(lines, name="f"), devices=(device,))


def raised() -> LineReport:
    lines = (
        Line(1, "def f():"),
        Line(
            2,
            "    a = torch.empty(10**15)",
            1,
            900,
            {"cpu": moved(0, 0)},
            raised="RuntimeError: out of memory:\n  tried to allocate 10 PB",
        ),
        Line(3, "    return a"),
    )
    return report(function(lines, name="f"))


def never_called() -> LineReport:
    lines = (Line(5, "def unused():"), Line(6, "    return 1"))
    return report(function(lines, name="unused", calls=0, note="never called"))


def compiled() -> LineReport:
    lines = (Line(5, "@torch.compile"), Line(6, "def fast(x):"), Line(7, "    return x * 2"))
    note = "compiled by torch.compile: its lines were compiled away"
    return report(function(lines, name="fast", calls=3, note=note))


HOSTILE = (
    "\tdef f(self):",
    "\t\ts = '<script>alert(1)</script>' & \"q\"",
    "\t\tprint('\x1b[31mred\x1b[0m\x07 \u202eflip', '記憶體用量')",
    "",
    "\t\tt = 'a,b;\r=1+1' # \udcff\x0c",
)


def hostile() -> LineReport:
    lines = tuple(
        ran(number, source, {"cpu": moved(0, 0)}) if number == 2 else Line(number, source)
        for number, source in enumerate(HOSTILE, 1)
    )
    return report(
        FunctionLines("f", "<b>f</b>", "m", "a\x1b[1m<i>.py", 1, 1, lines, "</style><script>"),
        process="<img src=x>",
        notes=("<script>note</script>",),
    )


def thousand_lines() -> LineReport:
    lines = [Line(1, "def long():")]
    for lineno in range(2, 1001):
        if lineno % 100 == 0:
            memory = {"cpu": moved(lineno * KIB, (lineno + 1) * KIB)}
            lines.append(ran(lineno, f"    x{lineno} = make()", memory))
        else:
            lines.append(Line(lineno, f"    # line {lineno}"))
    return report(function(tuple(lines), name="long"))


KINDS = {
    kind.__name__: kind
    for kind in (
        empty,
        one_line,
        training,
        eight_devices,
        all_devices_apart,
        unknown_figures,
        raised,
        never_called,
        compiled,
        hostile,
        thousand_lines,
    )
}
