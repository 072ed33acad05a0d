"""What verl has for GPUs alone, on a CPU; no more is changed.

verl takes it by its own plug-in point, ``VERL_USE_EXTERNAL_MODULES=verl_cpu`` in each of its
processes (``ENVIRON`` below). Engine, loss, trainer, workers and queue are verl's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from verl.plugin.platform import platform_manager
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.utils import distributed

ENVIRON = {
    "PYTHONPATH": os.pathsep.join((str(Path(__file__).parents[2]), str(Path(__file__).parent))),
    "VERL_USE_EXTERNAL_MODULES": "verl_cpu",
    # Its FSDP engine is registered for accelerators, by name; nothing in it needs one.
    "VERL_ENGINE_DEVICE": "cuda",
}

MEMORY = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


class CPUPlatform(PlatformCUDA):  # type: ignore[misc]
    """Torch's CPU; towards Ray still a "GPU", which ``ray.init(num_gpus=1)`` makes up."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = torch.cpu

    def current_device(self) -> Any:
        return "cpu"

    def set_allocator_settings(self, settings: str) -> None: ...

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield


def stand_in(put: Callable[..., None] = setattr) -> None:
    """Let it run on a CPU; ``put`` may be a monkeypatch's."""
    put(platform_manager, "_current_platform", CPUPlatform())
    # torch.cpu has no memory of its own to tell of.
    for told in ("empty_cache", *MEMORY):
        if not hasattr(torch.cpu, told):
            setattr(torch.cpu, told, lambda: 0)
    connect = distributed.initialize_global_process_group_ray
    # By itself it asks torch for "cpu:gloo,cpu:nccl", which names one device twice.
    put(
        distributed,
        "initialize_global_process_group_ray",
        lambda timeout_second=None, backend=None: connect(timeout_second, "gloo"),
    )


if __name__ == "verl_cpu":
    stand_in()
