"""The way between a worker and its ranks: a local socket that leaves no file behind where the system allows it."""

from __future__ import annotations

import os
import secrets
import sys
from multiprocessing.connection import Client, Connection, Listener

_ADDRESS, _KEY = "TORCHMARK_RANKS", "TORCHMARK_RANKS_KEY"


def open_listener() -> Listener:
    """Listen for ranks; they find the way through the environment, which they inherit."""
    key = secrets.token_bytes(32)
    name = f"torchmark-{secrets.token_hex(8)}"
    # On Linux the name is kept by the kernel alone: it is gone with its process, however that ends.
    listener = Listener("\0" + name if sys.platform == "linux" else None, backlog=64, authkey=key)
    os.environ[_ADDRESS] = name if sys.platform == "linux" else str(listener.address)
    os.environ[_KEY] = key.hex()
    return listener


def connect() -> Connection:
    """Reach the worker that started this rank."""
    address, key = os.environ.pop(_ADDRESS), bytes.fromhex(os.environ.pop(_KEY))
    return Client("\0" + address if sys.platform == "linux" else address, authkey=key)
