"""With this folder on PYTHONPATH, Python finds one workload more: `faulty`, which fails in a given way.

Where TORCHMARK_FAULT_AMX names a file, the CPU has no AMX: bfloat16 products are counted there and kill their process.
"""

import os
import signal
import sys
from pathlib import Path

before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt meanwhile would count as torchmark's fault
if "resource_tracker" not in " ".join(sys.orig_argv):  # Python's own helper, which needs no workloads
    import torchmark.workloads

    torchmark.workloads.__path__.append(str(Path(__file__).parent / "workloads"))

if "TORCHMARK_FAULT_AMX" in os.environ and "ONEDNN_MAX_CPU_ISA" not in os.environ:
    from torchmark.measure import machine as dtypes

    real = dtypes._time_product

    def die(device, dtype, size):
        if dtype == "bfloat16":
            with Path(os.environ["TORCHMARK_FAULT_AMX"]).open("a") as file:
                file.write("died\n")
            os.kill(os.getpid(), signal.SIGILL)
        return real(device, dtype, size)

    dtypes._time_product = die
signal.signal(signal.SIGINT, before)
