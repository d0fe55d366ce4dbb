"""What a terminal obeys instead of showing it."""

from __future__ import annotations

import unicodedata

# Each after an escape character.
SEQUENCES = (
    "[2J", "[3J", "[H", "[10;10H", "[5A", "[1A", "[2K", "[K", "[5m", "[7m", "[8m", "[31m", "[0m", "[38;5;196m",
    "[48;2;255;0;0m", "[4:3m", "[6n", "[c", "[>c", "[=c", "[5n", "[?25l", "[?1049h", "[?1000h", "[?2004h", "[?5h",
    "[20h", "[4h", "[12l", "[21t", "[18t", "[8;1;1t", "[s", "[u", "[3g", "[1;2r", "[L", "[M", "[P", "[@", "[X", "[!p",
    "[61\"p", "[0\"q", "[2 q", "[?15n", "[0;0;0;0;0;0$r", "[>4;1m", "]0;title\x07", "]2;title\x1b\\",
    "]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\", "]8;;http://evil\x07x\x1b]8;;\x07", "]52;c;ZXZpbA==\x07",
    "]52;c;?\x1b\\", "]4;1;rgb:00/00/00\x07", "]10;?\x07", "]11;#000000\x07", "]104\x07", "]133;A\x07",
    "]7;file:///etc\x07", "]9;notice\x07", "]777;notify;a;b\x07", "]1337;File=inline=1:AAAA\x07", "]50;x\x07",
    "Pq#0;2;0;0;0~\x1b\\", "P$qm\x1b\\", "P+q544e\x1b\\", "P1000p\x1b\\", "_Gf=100;AAAA\x1b\\", "_apc\x1b\\",
    "^pm\x1b\\", "Xsos\x1b\\", "c", "7", "8", "D", "E", "M", "H", "Z", "=", ">", "(0", ")0", "*B", "+B", "#8", "%G",
    "%@", "n", "o", "N", "O", "|", "}", "~", "l", "m", " F", " G", "\\", "[", "]", "P", "_",
)  # fmt: skip
TRICKS = (
    "\rtorchmark: all well", "\r\x1b[K", "\b\b\b\bok", "ok\x1b[2K\r", "\x0e\x0f", "\x05", "\x1b\x1b[31m", "\x1b\x9b31m",
    "\x1b[\x1b[31mm", "\x1b[3\x0031m", "\u202egnp.exe", "\u2066a\u2069b", "\u202a\u202b\u202d\u202c",
    "a\u200bb\u200cc\u200dd", "\ufeff\u2060\u00ad", "\u061c\u200e\u200f", "\u2028line\u2029paragraph", "\x85next",
    "\x0b\x0c", "\ufff9a\ufffab\ufffb", "".join(chr(0xE0000 + ord(letter)) for letter in "hidden"), "\ud800",
    "\udc80\udc9b31m", "\udcff", "\udcc2\udc9b2J", "\ufffe", "\uffff", "\x1b[31m" * 50,
)  # fmt: skip


def payloads() -> list[str]:
    """All of them; the 7-bit sequences come in their C1 form as well."""
    single = [chr(code) for code in (*range(32), *range(0x7F, 0xA0)) if chr(code) != "\n"]
    formats = [chr(code) for code in range(0x3000) if unicodedata.category(chr(code)) == "Cf"]
    short = [chr(ord(text[0]) + 0x40) + text[1:] for text in SEQUENCES if "@" <= text[0] <= "_"]
    return list(dict.fromkeys([*TRICKS, *(f"\x1b{text}" for text in SEQUENCES), *short, *single, *formats]))
