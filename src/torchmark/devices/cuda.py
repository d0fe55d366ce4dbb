"""NVIDIA GPUs, and AMD GPUs under ROCm, which torch calls cuda as well."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, ClassVar

from torchmark.devices.queued import QueuedDevice
from torchmark.records import DeviceInfo, Memory, Remark


class Cuda(QueuedDevice):
    """One GPU that torch.cuda sees."""

    kind = "cuda"
    root: ClassVar[Path] = Path("/")

    @classmethod
    def present(cls) -> tuple[str, ...]:
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return tuple(f"cuda:{index}" for index in range(count))

    @classmethod
    def diagnose(cls) -> tuple[Remark, ...]:
        import torch

        maker = cls._maker()
        if maker is None or torch.cuda.is_available():
            return ()
        build = {"NVIDIA": torch.version.cuda, "AMD": torch.version.hip}[maker]
        platform = {"NVIDIA": "CUDA", "AMD": "ROCm"}[maker]
        if build is None:
            other = torch.version.hip or torch.version.cuda
            kind = "CPU-only build" if other is None else "build for another maker's GPUs"
            cause = f"an {maker} GPU is here, but this torch ({torch.__version__}) is a {kind}"
            fix = f"Install a {platform} build with the command that pytorch.org/get-started gives"
            return (Remark("cpu-only-torch", cause, fix),)
        cause = f"an {maker} GPU is here and torch is built for {platform} {build}, but it can use no device"
        tool = {"NVIDIA": "nvidia-smi", "AMD": "rocminfo"}[maker]
        fix = f"See that `{tool}` works, that the driver is new enough, and what CUDA_VISIBLE_DEVICES hides"
        return (Remark("gpu-unusable", cause, fix),)

    @classmethod
    def _maker(cls) -> str | None:
        """Whose GPU this machine has, asked without torch."""
        if (cls.root / "proc/driver/nvidia").exists() or shutil.which("nvidia-smi"):
            return "NVIDIA"
        return "AMD" if (cls.root / "dev/kfd").exists() else None

    def info(self) -> DeviceInfo:
        import torch

        properties = torch.cuda.get_device_properties(self.index)
        rocm = torch.version.hip is not None
        return DeviceInfo(
            name=self.name,
            model=properties.name,
            memory_bytes=properties.total_memory,
            driver=self._rocm_driver() if rocm else self._nvidia_driver(),
            capability=properties.gcnArchName if rocm else f"sm_{properties.major}{properties.minor}",
            cores=properties.multi_processor_count,
            cache_bytes=getattr(properties, "L2_cache_size", None) or None,
        )

    def _rocm_driver(self) -> str | None:
        version = self.root / "sys/module/amdgpu/version"
        return version.read_text().strip() if version.exists() else None

    def _nvidia_driver(self) -> str | None:
        version = self.root / "proc/driver/nvidia/version"
        if version.exists():
            found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", version.read_text())
            return found[1] if found else None
        if not shutil.which("nvidia-smi"):
            return None
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            answer = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return next(iter(answer.stdout.split()), None)

    def select(self) -> None:
        import torch

        torch.cuda.set_device(self.index)

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize(self.index)

    def event(self) -> Any:
        import torch

        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def reset_peak_memory(self) -> None:
        import torch

        torch.cuda.reset_peak_memory_stats(self.index)

    def memory(self) -> Memory:
        import torch

        return Memory(
            device_peak_bytes=torch.cuda.max_memory_allocated(self.index),
            device_reserved_bytes=torch.cuda.max_memory_reserved(self.index),
        )
