"""Reads an accelerator's memory from its driver, of all processes and of this one.

Every function raises whatever the driver's bindings raise, and :class:`LookupError` with one line
for a reader where they are silent. None initialises a device that the program has not.
"""

from __future__ import annotations

import importlib
import os
import re
from typing import Any

# torch.cuda.list_gpu_processes (torch/cuda/memory.py, 2.13)
_LISTED = re.compile(r"process\s+(\d+) uses\s+([\d.]+) MB GPU memory")
_MIB = 1 << 20
_PAGE = 4096


def in_use(torch: Any, kind: str, index: int) -> tuple[int, int]:
    """Return the bytes in use on a device and the bytes it has; asked only when it is in use.

    Of CUDA, ROCm and XPU these are of all processes. Metal tells what this process has, and
    what it recommends as the most (``torch/mps/__init__.py``, 2.13).

    Raises:
        LookupError: the backend does not tell.
    """
    if kind == "mps":
        return int(torch.mps.driver_allocated_memory()), int(torch.mps.recommended_max_memory())
    module = getattr(torch, kind, None)
    ask = getattr(module, "mem_get_info", None)
    if ask is None:
        _require_accelerator(torch, kind)
        ask = getattr(torch.accelerator, "get_memory_info", None)
    if ask is None:
        raise LookupError(f"this torch does not tell the memory of {kind} devices: upgrade torch")
    free, total = ask(index)
    return int(total) - int(free), int(total)


def accelerator_figures(torch: Any, kind: str, index: int) -> tuple[int, int]:
    """Return the allocated and reserved bytes of a backend that torch has only a registry for.

    Peak statistics stay as they are (``torch/accelerator/memory.py``, 2.13).

    Raises:
        LookupError: the backend is not the one that ``torch.accelerator`` speaks for.
    """
    _require_accelerator(torch, kind)
    if not hasattr(torch.accelerator, "memory_allocated"):
        raise LookupError(f"this torch keeps no statistics of {kind} devices: upgrade torch")
    accelerator = torch.accelerator
    return int(accelerator.memory_allocated(index)), int(accelerator.memory_reserved(index))


def _require_accelerator(torch: Any, kind: str) -> None:
    accelerator = getattr(torch, "accelerator", None)
    current = accelerator.current_accelerator() if accelerator is not None else None
    if current is None or current.type != kind:
        raise LookupError(f"torch tells nothing of the memory of {kind} devices")


def of_this_process(torch: Any, index: int) -> int:
    """Return the bytes this process has on a CUDA or ROCm device, its context included.

    Raises:
        LookupError: NVML or amdsmi is not installed, or does not tell.
    """
    if getattr(torch.version, "hip", None):
        return _from_amdsmi(torch, index)
    return _from_nvml(torch, index)


def _from_nvml(torch: Any, index: int) -> int:
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        raise LookupError("needs NVML's Python bindings: pip install nvidia-ml-py") from None
    # NVML numbers devices otherwise than CUDA does, and knows nothing of CUDA_VISIBLE_DEVICES
    uuid = torch.cuda.get_device_properties(index).uuid
    pynvml.nvmlInit()
    try:
        handle = _handle(pynvml, str(uuid))
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    finally:
        pynvml.nvmlShutdown()
    found = [process.usedGpuMemory for process in processes if process.pid == os.getpid()]
    if not found:
        raise LookupError(
            "NVML does not list this process: in a container it has another number there"
        )
    if found[0] is None:
        raise LookupError("this driver does not tell NVML the memory of a process (WDDM)")
    return int(found[0])


def _handle(pynvml: Any, uuid: str) -> Any:
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


def _from_amdsmi(torch: Any, index: int) -> int:
    """Return what torch's own listing says; its three decimals of a MiB still tell the page."""
    listing = str(torch.cuda.list_gpu_processes(index))
    lines = listing.splitlines()
    if not lines or not lines[0].startswith("GPU:"):
        raise LookupError(lines[0] if lines else "amdsmi does not tell")
    for pid, mebibytes in _LISTED.findall(listing):
        if int(pid) == os.getpid():
            return round(float(mebibytes) * _MIB / _PAGE) * _PAGE
    raise LookupError("amdsmi does not list this process: in a container it has another number")
