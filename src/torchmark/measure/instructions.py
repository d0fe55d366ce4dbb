"""Finds instructions that a processor announces without having them, as virtual machines do with AMX.

oneDNN believes the announcement, and the first bfloat16 product kills the process.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from torchmark.measure.dtypes import try_dtypes
from torchmark.meters.contract import ROOT, read_text

VARIABLE, SAFE = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"


def announced_amx(root: Path = ROOT) -> str | None:
    """A name for this processor as it is since the machine was started, if it announces AMX; None if it does not."""
    flags = re.search(r"^flags\s*:(.*)$", read_text(root / "proc/cpuinfo") or "", re.MULTILINE)
    if not flags or "amx_tile" not in flags[1].split():
        return None
    boot = read_text(root / "proc/sys/kernel/random/boot_id") or ""
    return hashlib.sha256(f"{boot} {flags[1]}".encode()).hexdigest()[:24]


def lacks_amx() -> bool | None:
    """Whether a bfloat16 product kills the process that tries it; None if the trial ended in another way."""
    (tried,) = try_dtypes("cpu", ("bfloat16",))
    if not tried.crashed:
        return False
    return True if "SIGILL" in (tried.reason or "") else None
