"""The privacy allow-list: settings with the forms of values that a result may record, and names of hardware, systems
and versions as they are shared. Any other value is recorded as `set`, or left out."""

import re

SET = "set"  # to something that is not recorded

_NO_WORD = r"(?!)"  # matches nothing
_NUMBER = r"[0-9]{1,9}"
_SWITCH = r"[01]|true|false|on|off|yes|no"
_PLACE = r"[0-9]{1,5}(?:[-:][0-9]{1,5}){0,2}"  # 3, 0-7, 0-15:2

_ALLOCATOR = (  # options of PyTorch's caching allocator
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
    r"logical|physical|granularity=(?:fine|thread|core|tile|module|die|socket|package|node|numa_domain|group|"
    r"proc_group|l[123l]_cache|core_type|core_eff)|"
    rf"proclist=\[{_PLACE}(?:,{_PLACE}){{0,63}}\]|[0-9]{{1,4}}"
)
_INSTRUCTIONS = (
    r"ALL|DEFAULT|SSE41|AVX|AVX2(_VNNI(_2)?)?|AVX512_MIC(_4OPS)?|AVX512_CORE(_VNNI|_BF16|_FP16|_AMX(_FP16)?)?|"
    r"AVX10_1_512(_AMX(_FP16)?)?|AVX10_2(_512)?(_AMX_2)?|AVX10_2_ACE"
)
_FAULT = r"(?:autograd graph|eager attention|evaluation mode)"  # of publications, that a replay can leave untried
_ENDING = (  # of the class names of transformers
    r"(?:Model(?:WithLMHead)?|Encoder|Decoder|Backbone|VisionTransformer|For(?:CausalLM|MaskedLM|ConditionalGeneration|"
    r"(?:Sequence|Token|Image)Classification|QuestionAnswering)(?:Simple|WithTeacher|Learned|Fourier|ConvProcessing)?)"
)
# Where torch is loaded, it is checked that torch has such an operator.
_OPERATOR = r"(?:an operator|aten::[A-Za-z0-9_]{1,80})"

# Environment variables that change the speed of torch, with the values that are recorded.
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
    "MALLOC_CONF": _NO_WORD,
    "LD_PRELOAD": _NO_WORD,
}
PLUGIN = "plugin"  # the package that brought the workload, with its version


def key_of(variable: str) -> str:
    """The name of a variable among the settings of a result."""
    return {"ONEDNN_MAX_CPU_ISA": "onednn_max_isa"}.get(variable, variable.lower().rstrip("_"))


# All settings with the form of their words. Numbers and switches need none.
SETTINGS: dict[str, str] = {
    **{key_of(name): form for name, form in VARIABLES.items()},
    **dict.fromkeys(("threads", "interop_threads", "cores_allowed", "nodes", "steps", "script_threads"), _NO_WORD),
    **dict.fromkeys(("cudnn_tf32", "cudnn_benchmark", "deterministic", "onednn"), _NO_WORD),
    "matmul_precision": r"highest|high|medium",
    "backend": r"gloo|nccl|xccl|ccl|mpi|ucc",
    "attention": r"none|eager|sdpa|flex_attention|flash_attention_[0-9]|paged_attention",
    "architecture": rf"[A-Za-z][A-Za-z0-9_]{{0,39}}{_ENDING}",
    "data": r"files|stand-in",
    "reference": r"torch\.float[0-9]{2}, which the model insists on",
    "numbers": r"not checked: the model draws at random",
    "ran_on_cpu": rf"{_OPERATOR}(?:, {_OPERATOR}){{0,20}}",
    "faults not tried": rf"{_FAULT}(?:, {_FAULT}){{0,9}}",
    PLUGIN: r"[A-Za-z0-9][A-Za-z0-9._-]{0,79} [0-9][A-Za-z0-9.+!_-]{0,39}",
}


def is_shareable(key: str, value: object) -> bool:
    form = rf"{SETTINGS.get(key)}|{SET}"
    return key in SETTINGS and (not isinstance(value, str) or bool(re.fullmatch(form, value, re.IGNORECASE)))


def redacted(variable: str, text: str | None) -> str | int | None:
    """The value of a variable if it is on the list, else `set`; None: not set."""
    text = (text or "").strip()
    text = text if variable == "ONEDNN_MAX_CPU_ISA" else text.lower()
    if text and (variable not in VARIABLES or not is_shareable(key_of(variable), text)):
        return SET
    return int(text) if re.fullmatch(_NUMBER, text) else text or None


_SYSTEM = (  # systems, and the IDs of distributions in os-release
    r"(?:linux|macos|windows|darwin|freebsd|openbsd|netbsd|unknown|almalinux|alinux|alpine|amzn|anolis|arch|"
    r"archarm|artix|azurelinux|bazzite|bottlerocket|cachyos|centos|clear-linux-os|coreos|cos|debian|deepin|"
    r"devuan|elementary|endeavouros|fedora|flatcar|garuda|gentoo|guix|kali|kylin|linuxmint|mageia|manjaro|"
    r"mariner|mx|neon|nixos|nobara|ol|openeuler|opensuse|opensuse-leap|opensuse-tumbleweed|parrot|photon|pop|"
    r"pureos|raspbian|rhel|rocky|scientific|slackware|sled|sles|solus|steamos|tencentos|ubuntu|uos|void|wolfi|"
    r"zorin)"
)
_RELEASE = re.compile(
    r"(?:[0-9]{1,4}!)?[0-9]{1,9}(?:\.[0-9]{1,9}){0,4}(?:(?:a|b|rc)[0-9]{1,9})?(?:\.post[0-9]{1,9})?(?:\.dev[0-9]{1,9})?"
)
_BUILD = (  # that PyTorch and the makers of hardware publish
    r"(?:cpu|cu[0-9]{2,3}|rocm[0-9]{1,2}(?:\.[0-9]{1,3}){0,3}|rocmsdk[0-9]{8}|xpu|lw|dfsg|cxx11\.abi|with\.pypi\.cudnn|"
    r"(?:git)?[0-9a-f]{7,40}|nv[0-9]{2}\.[0-9]{1,2}(?:\.[0-9]{1,9})?)"
)
_PUBLISHED = re.compile(rf"\+(?:{_BUILD}(?:\.{_BUILD}){{0,4}})?")
# In names of hardware a slash stands between model numbers: R7/R9, 6600/6600M, [A/B].
_MODEL_NUMBER = re.compile(r"[\[(]?(?:[A-Z]{1,5}|[A-Z]{0,4}[0-9]{1,5}[A-Za-z]{0,3})[\])]?,?")
_ADDRESS = re.compile(
    r"\w\.[a-z-]*[a-z]{2}|\w@[a-z]|\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}\b|[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}|\\|~",
    re.IGNORECASE,
)


def shareable_system(text: str) -> str:
    """A system's name and version; empty if the name is not a published one."""
    version = r"[0-9]{1,8}(?:\.[0-9]{1,4})?(?:Server(?:R2)?)?\Z"
    return found[0] if (found := re.match(rf"{_SYSTEM}(?= |\Z)(?: {version})?", text, re.IGNORECASE)) else ""


def shareable_version(text: str) -> str:
    """A package's version. A private build keeps `+local`, unlike the published one; empty: no version."""
    if not (release := _RELEASE.match(text)):
        return ""
    build = text[release.end() :]
    return text if not build or _PUBLISHED.fullmatch(build) else f"{release[0]}+local"


def shareable_build(text: str) -> str:
    """What torch was built for, such as `CUDA 12.6` or `ROCm 6.2.41133-dd7f95766`; empty if it is none of these."""
    found = re.match(r"(CUDA|ROCm|XPU|MPS|CPU)\b(?: [0-9][0-9.]{0,19}(?:[-+][0-9a-f]{1,40})?$)?", text)
    return found[0] if found else ""


def shareable_hardware(text: str) -> str:
    """A name without words that look like a path, a domain, an address or an account."""

    def is_path(word: str) -> bool:
        parts = word.removeprefix("w/").split("/")  # AMD writes `w/ Radeon Graphics`
        return word != "/" and len(parts) > 1 and not all(map(_MODEL_NUMBER.fullmatch, parts))

    return " ".join(word for word in text.split() if not _ADDRESS.search(word) and not is_path(word))
