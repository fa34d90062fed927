"""An accelerator that is none, over the host's memory: what torch would tell of CUDA's."""

import contextlib
import ctypes
from array import array
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from tensorlens.frameworks.torch import COUNTER, cpu, loop_steps
from tensorlens.native import build as building

PART = replace(
    COUNTER,
    name="stand_in_device",
    label="the stand-in of an accelerator",
    source=Path(__file__).with_suffix(".cpp"),
    depends_on=lambda: (*COUNTER.depends_on(), Path(__file__).with_suffix(".cpp").read_bytes()),
)


class StandIn:
    """Up to eight devices that new tensors of the host may be of."""

    def __init__(self):
        self.library = library = building.load(PART)
        library.choose.argtypes = (ctypes.c_int16,)
        library.list.argtypes = (ctypes.c_void_p, ctypes.c_int64)
        library.list.restype = ctypes.c_int64
        library.hand_out.argtypes = (ctypes.c_int64,)
        library.hand_out.restype = ctypes.c_void_p
        library.hand_back.argtypes = (ctypes.c_void_p,)
        self.devices = ["cuda:0"]
        self.unlisted = False
        """Whether the allocator has no list of its blocks."""
        self.backend = "native"
        self.looks = 0

    @contextlib.contextmanager
    def on(self, index=0):
        """Make new tensors of the host those of a device."""
        self.library.choose(index)
        try:
            yield
        finally:
            self.library.choose(-1)

    def rows(self):
        """Return address, requested size, size and device of each block."""
        count = self.library.list(None, 0)
        rows = array("q", bytes(32 * count))
        count = min(count, self.library.list(rows.buffer_info()[0], count))
        fields = iter(rows[: 4 * count])
        return list(zip(fields, fields, fields, fields, strict=True))

    def memory_snapshot(self, include_traces=True):
        """What ``torch.cuda.memory_snapshot()`` gives."""
        self.looks += 1
        assert not include_traces, "a history may be long"
        if self.unlisted:
            raise RuntimeError("this allocator does not yet support memorySnapshot")
        return [
            {
                "device": device,
                "address": address,
                "total_size": size,
                "blocks": [{"size": size, "requested_size": asked, "state": "active_allocated"}],
            }
            for address, asked, size, device in self.rows()
        ]

    def get_allocator_backend(self):
        """What ``torch.cuda.get_allocator_backend()`` gives."""
        return self.backend

    def counter(self, device):
        """Return the counter of a device."""
        index = int(device.partition(":")[2])

        def read():
            allocated = sum(size for _, _, size, where in self.rows() if where == index)
            return allocated, allocated, allocated

        return SimpleNamespace(reader=lambda: read)

    def install(self, patch):
        """Put it where the package looks for accelerators."""
        backend = SimpleNamespace(
            module=self,
            may_exist=lambda: True,
            segments=lambda: self.memory_snapshot(include_traces=False),
        )
        patch.setattr(loop_steps, "backends", {"cuda": backend})
        patch.setattr(loop_steps, "used_devices", lambda: self.devices)
        patch.setattr(loop_steps, "device_counter", self.counter)


@contextlib.contextmanager
def stand_in(patch):
    """Give a stand-in that is in place."""
    # it is the counter of the host that is to be below
    cpu.cpu_counter()
    device = StandIn()
    device.install(patch)
    device.library.stand_in()
    try:
        yield device
    finally:
        device.library.choose(-1)
        device.library.stand_down()
