"""Apple GPUs through Metal."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable

from torchmark.devices.contract import BlockTimer, Device
from torchmark.devices.queued import refuse_fallback, run_kernel
from torchmark.records import Block, DeviceInfo, Memory, Remark


class Mps(Device):
    """The one GPU of an Apple machine. Its events are not used: a block is timed between two synchronisations."""

    kind = "mps"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._peak_bytes = 0

    @classmethod
    def present(cls) -> tuple[str, ...]:
        import torch

        return ("mps",) if torch.backends.mps.is_available() else ()

    @classmethod
    def diagnose(cls) -> tuple[Remark, ...]:
        import torch

        if platform.system() != "Darwin" or platform.machine() != "arm64" or torch.backends.mps.is_available():
            return ()
        if not torch.backends.mps.is_built():
            cause = f"an Apple GPU is here, but this torch ({torch.__version__}) is built without MPS"
            return (Remark("cpu-only-torch", cause, "Install the arm64 macOS build from PyPI: pip install torch"),)
        cause = "torch is built with MPS, but macOS offers it no device"
        return (Remark("gpu-unusable", cause, "Use macOS 14 or later, outside a virtual machine"),)

    def open(self) -> None:
        refuse_fallback("PYTORCH_ENABLE_MPS_FALLBACK", self.name)
        run_kernel(self)

    def info(self) -> DeviceInfo:
        import torch

        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        try:
            chip = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            chip = ""
        return DeviceInfo(
            name=self.name,
            model=f"{chip or 'Apple'} GPU",
            memory_bytes=torch.mps.recommended_max_memory(),
            driver=f"macOS {platform.mac_ver()[0]}",
        )

    def synchronize(self) -> None:
        import torch

        torch.mps.synchronize()

    def reset_peak_memory(self) -> None:
        self._peak_bytes = 0
        self._sample_memory()

    def memory(self) -> Memory:
        self._sample_memory()
        return Memory(device_peak_bytes=self._peak_bytes, provenance="sampled")

    def timer(self, run: Callable[[], object]) -> BlockTimer:
        time_steps = super().timer(run)

        def time_block(count: int) -> Block:
            block = time_steps(count)
            self._sample_memory()
            return block

        return time_block

    def _sample_memory(self) -> None:
        import torch

        self._peak_bytes = max(self._peak_bytes, torch.mps.driver_allocated_memory())
