"""Intel GPUs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

from torchmark.devices.queued import QueuedDevice, refuse_fallback
from torchmark.records import DeviceInfo, Memory, Remark


class Xpu(QueuedDevice):
    """One GPU that torch.xpu sees."""

    kind = "xpu"
    root: ClassVar[Path] = Path("/")

    @classmethod
    def present(cls) -> tuple[str, ...]:
        import torch

        count = torch.xpu.device_count() if torch.xpu.is_available() else 0
        return tuple(f"xpu:{index}" for index in range(count))

    @classmethod
    def diagnose(cls) -> tuple[Remark, ...]:
        import torch

        # Most Intel CPUs have a small GPU that is not meant for computing; Intel's compute tools show intent.
        intended = shutil.which("xpu-smi") or (cls.root / "opt/intel/oneapi").exists()
        if not intended or not cls._has_gpu() or torch.xpu.is_available():
            return ()
        if torch.version.xpu is None:
            cause = f"an Intel GPU is here, but this torch ({torch.__version__}) is not built for XPU"
            fix = "Install an XPU build with the command that pytorch.org/get-started gives"
            return (Remark("cpu-only-torch", cause, fix),)
        cause = f"an Intel GPU is here and torch is built for XPU {torch.version.xpu}, but it can use no device"
        return (Remark("gpu-unusable", cause, "Install Intel's compute runtime and join the group `render`"),)

    @classmethod
    def _has_gpu(cls) -> bool:
        vendors = (cls.root / "sys/class/drm").glob("renderD*/device/vendor")
        return any(vendor.read_text().strip() == "0x8086" for vendor in vendors)

    def open(self) -> None:
        refuse_fallback("PYTORCH_ENABLE_XPU_FALLBACK", self.name)
        super().open()

    def info(self) -> DeviceInfo:
        import torch

        properties = torch.xpu.get_device_properties(self.index)
        return DeviceInfo(
            name=self.name,
            model=properties.name,
            memory_bytes=properties.total_memory,
            driver=properties.driver_version,
            capability=getattr(properties, "version", None),
            cores=properties.gpu_eu_count,
            cache_bytes=getattr(properties, "last_level_cache_size", None) or None,
        )

    def select(self) -> None:
        import torch

        torch.xpu.set_device(self.index)

    def synchronize(self) -> None:
        import torch

        torch.xpu.synchronize(self.index)

    def event(self) -> Any:
        import torch

        return torch.xpu.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def reset_peak_memory(self) -> None:
        import torch

        torch.xpu.reset_peak_memory_stats(self.index)

    def memory(self) -> Memory:
        import torch

        return Memory(
            device_peak_bytes=torch.xpu.max_memory_allocated(self.index),
            device_reserved_bytes=torch.xpu.max_memory_reserved(self.index),
        )
