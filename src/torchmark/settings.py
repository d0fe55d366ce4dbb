"""What a result may say about how its process was set up: every key that there is, and the form that its value has.

Results are shared, and the environment, a plug-in or a file of the user's may hold anything. So this is a list of what
may be told, not of what may not: where something else stands, only that something stands there is told, or nothing.
"""

from __future__ import annotations

import re

SET = "set"  # to something that is not told

_NUMBER = r"[0-9]{1,9}"
_SWITCH = r"[01]|true|false|on|off|yes|no"
_PLACE = r"[0-9]{1,5}(?:[-:][0-9]{1,5}){0,2}"  # 3, 0-7, 0-15:2

# What PyTorch's caching allocator can be told.
_ALLOCATOR = (
    r"(?:backend|expandable_segments|garbage_collection_threshold|max_split_size_mb|max_non_split_rounding_mb|"
    r"per_process_memory_fraction|pinned_num_register_threads|pinned_use_background_threads|"
    r"pinned_use_cuda_host_register|pinned_use_hip_host_register|release_lock_on_cudamalloc|"
    r"release_lock_on_hipmalloc|roundup_power2_divisions)"
    r":(?:true|false|native|cudamallocasync|hipmallocasync|[0-9]{1,6}(?:\.[0-9]{1,6})?|"
    r"\[(?:(?:[0-9]{1,6}|>):[0-9]{1,3},?){1,16}\])"
)
_ALLOCATOR = rf"{_ALLOCATOR}(?:, ?{_ALLOCATOR}){{0,15}}"
_AFFINITY = (
    r"(?:no)?(?:verbose|warnings|respect|reset)|none|compact|balanced|scatter|disabled|explicit|norespect|"
    rf"logical|physical|granularity=[a-z]{{1,9}}|proclist=\[{_PLACE}(?:,{_PLACE}){{0,63}}\]|[0-9]{{1,4}}"
)
_INSTRUCTIONS = (
    r"ALL|DEFAULT|SSE41|AVX|AVX2(_VNNI(_2)?)?|AVX512_CORE(_VNNI|_BF16|_FP16|_AMX(_FP16)?)?|"
    r"AVX10_\d_\d+(_AMX(_\w{1,4})?)?"
)

# Variables of the environment that change how fast torch is, and the values that may be told. How others begin a
# process is their own business: of LD_PRELOAD, which names files, only that there is one.
VARIABLES: dict[str, str] = {
    "OMP_NUM_THREADS": rf"{_NUMBER}(?:,{_NUMBER}){{0,3}}",
    "OMP_PROC_BIND": r"true|false|close|spread|primary|master",
    "OMP_PLACES": r"(?:threads|cores|sockets|ll_caches|numa_domains)(?:\([0-9]{1,5}\))?|[0-9{}:,-]{1,100}",
    "OMP_WAIT_POLICY": r"active|passive",
    "KMP_BLOCKTIME": rf"{_NUMBER}(?:us|ms|s)?|infinite",
    "KMP_AFFINITY": rf"(?:{_AFFINITY})(?:,(?:{_AFFINITY})){{0,7}}",
    "GOMP_CPU_AFFINITY": rf"{_PLACE}(?:[ ,]{_PLACE}){{0,63}}",
    "MKL_NUM_THREADS": _NUMBER,
    "ONEDNN_MAX_CPU_ISA": _INSTRUCTIONS,
    "PYTORCH_ALLOC_CONF": _ALLOCATOR,
    "PYTORCH_CUDA_ALLOC_CONF": _ALLOCATOR,
    "PYTORCH_ENABLE_MPS_FALLBACK": _SWITCH,
    "NVIDIA_TF32_OVERRIDE": _SWITCH,
    "CUDA_LAUNCH_BLOCKING": _SWITCH,
    "MALLOC_ARENA_MAX": _NUMBER,
    "MALLOC_TRIM_THRESHOLD_": _NUMBER,
    "MALLOC_CONF": r"(?!)",
    "LD_PRELOAD": r"(?!)",
}
PLUGIN = "plugin"  # the package that brought the workload, with its version

# All else that torchmark says, with the form of its words; numbers and switches need none.
_WORDS: dict[str, str] = {
    "threads": "",
    "interop_threads": "",
    "cores_allowed": "",
    "matmul_precision": r"highest|high|medium",
    "cudnn_tf32": "",
    "cudnn_benchmark": "",
    "deterministic": "",
    "onednn": "",
    "nodes": "",
    "steps": "",
    "backend": r"gloo|nccl|xccl|ccl|mpi|ucc",
    "attention": r"none|eager|sdpa|flex_attention|flash_attention_[0-9]|paged_attention",
    "architecture": r"[A-Za-z][A-Za-z0-9]{0,79}",
    "data": r"files|stand-in",
    "script_threads": "",
    "reference": r"torch\.float[0-9]{2}, which the model insists on",
    "numbers": r"not checked: the model draws at random",
    "ran_on_cpu": r"(?:an operator|[\w:.]{1,80})(?:, (?:an operator|[\w:.]{1,80})){0,20}",
    "faults not tried": r"[a-z -]{1,40}(?:, [a-z -]{1,40}){0,9}",
    PLUGIN: r"[A-Za-z0-9][A-Za-z0-9._-]{0,79} [0-9][A-Za-z0-9.+!_-]{0,39}",
}


def key_of(variable: str) -> str:
    """What a result calls a variable."""
    return {"ONEDNN_MAX_CPU_ISA": "onednn_max_isa"}.get(variable, variable.lower().rstrip("_"))


_OF_VARIABLES = {key_of(name): form for name, form in VARIABLES.items()}
KEYS = frozenset((*_WORDS, *_OF_VARIABLES))


def is_variable(key: str) -> bool:
    """Whether a result has this from the environment."""
    return key in _OF_VARIABLES


def may_be_told(key: str, value: object) -> bool:
    """Whether this may stand in a result under this key."""
    if key not in KEYS:
        return False
    if not isinstance(value, str):
        return True
    form = _OF_VARIABLES.get(key) or _WORDS[key]
    return value == SET if not form else re.fullmatch(rf"{form}|{SET}", value, re.IGNORECASE) is not None


def told_of(variable: str, text: str | None) -> str | int | None:
    """What a result says of a variable that stands in the environment like this; None: it is not set."""
    if text is None or not text.strip():
        return None
    text = text.strip().lower() if variable != "ONEDNN_MAX_CPU_ISA" else text.strip()
    if not may_be_told(key_of(variable), text):
        return SET
    return int(text) if re.fullmatch(_NUMBER, text) else text
