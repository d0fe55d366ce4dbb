"""Control characters in files, names and outputs of processes are shown on the terminal, never obeyed."""

from __future__ import annotations

import sys

import pytest

import payloads

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")


def test_no_command_lets_a_control_character_through() -> None:
    chosen = ["\x1b]52;c;ZXZpbA==\x07\x1b[8m", "\r\x1b[K\x9b2J\u202e\u2066\U000e0041\u2028", "\udcff\udc9b31m"]
    tally = payloads.try_out(chosen)
    assert tally.notes == []
    assert sum(tally.showing.values()) > 300  # payloads came as far as the output


def test_a_control_character_would_be_seen() -> None:
    assert payloads.obeyed("a\x1b[2mfaint\x1b[0m\r\x1b[Kb\n", "c") == []
    for text in ("\x1b[8m", "\x1b]0;x\x07", "\r", "\x9b", "\u202e", "\x7f", "\udc9b", "\U000e0041"):
        assert payloads.obeyed(f"qx{text}xq", "c")
    assert payloads.obeyed("qx\r\x1b[Kxq", "\r\x1b[K")


def test_there_are_enough_payloads() -> None:
    assert len(set(payloads.payloads())) >= 200
