"""What may leave this machine: the typed fields of the records, and texts without what names a person or a place.

Everything that is written into a run file comes through here, and so does everything that is exported: a run file
that is sent around by hand tells no more than an exported one.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from torchmark.settings import KEYS, is_variable, may_be_told

GONE = "…"
LONGEST_TEXT, LONGEST_NAME = 600, 200
_TEXTS = ("reason", "evidence", "cause", "cure", "provenance", "method")  # words, some of which others have put
_CHOSEN = ("id", "created", "cases", "case", "sha256")  # made for being shared
_OURS = ("kind", "status", "verdict", "estimand", "rigor", "transfer", "protocol", "bound")  # one of a few words each
_FREE = (
    "params",
    "ways",
    "metrics",
    "phases_s",
    "provenance",
    "shares",
)  # whose keys are words of a workload
_NOBODY = re.compile(r"(?!)")
_NAME = re.compile(r"[\w(][\w .,:;()+@=%*&®™'-]*")

# Words that half of all machines have for a user or a host: they tell nothing, and occur in messages.
_COMMON = re.compile(
    r"root|user|admin|administrator|ubuntu|debian|runner|docker|nobody|default|guest|home|host|"
    r"localhost|localdomain|local|linux|windows|cpu|gpu|torch|python|.?",
    re.IGNORECASE,
)
# Their values are settings that a message may well name, and none of them can hold a secret.
_HARMLESS = re.compile(r"(OMP|KMP|MKL|ONEDNN|DNNL|TORCHMARK_FAKE|LANG|LC_\w+|TERM|COLUMNS|LINES|SHLVL)(_\w+)?")
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|AUTH|CREDENTIAL|COOKIE", re.IGNORECASE)
_NAMES_OF_OURS = ("USER", "LOGNAME", "USERNAME", "SUDO_USER", "HOSTNAME", "COMPUTERNAME", "USERDOMAIN", "USERDNSDOMAIN")

_PRIVATE = re.compile(
    r"""
      (?<![\w+.-])[A-Za-z][\w+.-]*://\S+                                 # an address on the net, or file://
    | (?P<quote>['"])(?:[/~]|[A-Za-z]:[\\/]|\\\\)[^'"\n]*(?P=quote)       # a quoted path, which may hold spaces
    | (?<![\w\\])[A-Za-z]:[\\/][^\s'"<>|,;]*                              # C:\Users\…
    | \\\\[^\s'"<>|,;]+                                                   # \\server\share
    | (?<![\w.)\]/-])~?(?:/[^\s/'"<>|,;:()]+)+/?                          # /home/…
    | (?<![\w.~-])[\w.~-]+(?:/[\w.+%~-]+){2,}                            # some/where/else
    | (?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+                           # an e-mail address
    | (?<![\w:-])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![\w:-])        # a network card
    | (?<![\w:])(?:[0-9A-Fa-f]{1,4}:){3,7}[0-9A-Fa-f]{1,4}(?![\w:])(?:%\w+)?
    | (?<![\w:])(?:[0-9A-Fa-f]{1,4}:)*(?:[0-9A-Fa-f]{1,4})?::(?:[0-9A-Fa-f]{1,4}:)*[0-9A-Fa-f]{1,4}(?![\w:])(?:%\w+)?
    | (?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\.?\d)(?::\d+)?(?:/\d+)?          # and of the net
    | (?<![\w.-])[A-Za-z0-9][\w.-]*:\d{4,5}(?!\d)                         # host:port
    | (?<![\w.-])(?:[A-Za-z0-9-]+\.)+
      (?:com|org|net|edu|gov|mil|io|dev|cloud|local|lan|internal|localdomain|home|corp|intranet|arpa)(?![\w-])
    | (?i:(?:password|passwd|secret|token|api[_-]?key|authorization)['"]?\s*[=:]\s*(?:bearer\s+)?|\bbearer\s+)\S+
    | (?<!\w)[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?!\w)   # a UUID
    | (?<![\w-])(?=(?:[A-Za-z_-]*\d){4})[\w-]{20,}                        # what looks like a token
    | (?<![A-Za-z0-9])(?=[A-Za-z]*\d)[A-Za-z0-9]{20,}
    | 0x[0-9A-Fa-f]+                                                      # an address in memory
    """,
    re.VERBOSE,
)


def shareable(line: Any) -> Any:
    """The plain data of a line as it may be written and sent around; what torchmark itself says stays as it is."""
    return _fields(line, "", _own())


def without_private(text: str) -> str:
    """A text from anywhere without paths, addresses, tokens, and the names of this machine and its user."""
    return _strip(text, _own())


def _fields(value: Any, name: str, own: re.Pattern[str]) -> Any:
    if isinstance(value, dict):
        if name == "settings":
            return _settings(value, own)
        if name in ("machine", "case", "winner"):  # a processor may well be called like the machine that has it
            own = _NOBODY
        if name in _FREE:
            kind = name if name in _TEXTS else ""
            return {_name(key, own): _fields(inner, kind, own) for key, inner in value.items()}
        return {key: _fields(inner, key, own) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_fields(inner, name, own) for inner in value]
    if not isinstance(value, str) or name in _CHOSEN or name in _OURS:
        return value
    if name == "label":
        return value[:LONGEST_NAME]
    if name == "command":
        return _PRIVATE.sub(GONE, value)
    return _strip(value, own)[:LONGEST_TEXT] if name in _TEXTS else _name(value, own)


def _settings(told: dict[str, Any], own: re.Pattern[str]) -> dict[str, Any]:
    """A workload may note anything: what has a known key and the form that belongs to it is kept."""
    return {key: _setting(key, value, own) for key, value in told.items() if key in KEYS}


def _setting(key: str, value: Any, own: re.Pattern[str]) -> Any:
    named = isinstance(value, str) and not is_variable(key) and own.search(value)
    return value if may_be_told(key, value) and not named else GONE


def _name(text: str, own: re.Pattern[str]) -> str:
    """A model, a version, a unit: what looks like one is one, unless it is a name of this machine or its user."""
    text = own.sub(_without, text)
    return (text if _NAME.fullmatch(text) else _PRIVATE.sub(GONE, text))[:LONGEST_NAME]


def _strip(text: str, own: re.Pattern[str]) -> str:
    return _PRIVATE.sub(GONE, own.sub(_without, text))


def _without(found: re.Match[str]) -> str:
    """Of a path there may be more to come, and that must still look like one."""
    return f"/{GONE}" if re.match(r"[/~\\]|[A-Za-z]:", found[0]) else GONE


def _own() -> re.Pattern[str]:
    """All that this machine would give away, wherever it stands as a word."""
    values = sorted(set(_values()), key=len, reverse=True)
    words = sorted({word for word in _words() if not _COMMON.fullmatch(word)}, key=len, reverse=True)
    parts = [*map(re.escape, values), *(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])" for word in words)]
    return re.compile("|".join(parts) or r"(?!)", re.IGNORECASE)


def _values() -> Iterator[str]:
    """Values of the environment that no message of ours could contain by chance, and the home folder."""
    for name, value in os.environ.items():
        secret = _SECRET.search(name) and len(value) >= 4
        if secret or (len(value) >= 8 and not value.isalpha() and not _HARMLESS.fullmatch(name)):
            yield value
    yield from filter(None, _account()[1:])


def _words() -> Iterator[str]:
    """Names of the machine, of its domain, and of its user."""
    user, home = _account()
    for name in (platform.node(), user, Path(home).name, *(os.environ.get(each, "") for each in _NAMES_OF_OURS)):
        yield from (name, name.partition(".")[0], name.partition(".")[2])


@cache
def _account() -> tuple[str, str]:
    """The user's name and home folder as the system knows them, whatever the environment says."""
    try:
        import pwd

        entry = pwd.getpwuid(os.getuid())
    except (ImportError, KeyError):  # Windows, and containers without a user database
        return "", ""
    return entry.pw_name, entry.pw_dir if len(entry.pw_dir) > 1 else ""
