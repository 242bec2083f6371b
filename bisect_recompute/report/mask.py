"""Secrets masked in what a run keeps: logs, error lines, tickets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from bisect_recompute.measurement.journal import write_atomically

HIDDEN = "[masked]"
_WORD = (
    r"(?:token|secret|passwd|password|passphrase|pass|pwd|pat|credentials?"
    r"|(?:api|secret|private|auth|account)[_-]?key|access[_-]?key(?:[_-]?id)?)"
)
_NAME = rf"(?:[\w.-]*[_.-])?{_WORD}"
_VALUE = r"""(?:"[^"\n]+"|'[^'\n]+'|[^\s"',;&)}\]]+)"""
# The telling word is looked for, not the whole name: a search for the name costs the square of a long line of dashes.
_ASSIGNMENT = re.compile(rf"""(?i)(?<![a-z0-9])({_WORD}["']?\s{{0,9}}(?:=|:)\s{{0,9}})({_VALUE})""")
_FLAG = re.compile(rf"(?i)(?<!-)(--(?:[\w-]{{0,64}}[_-])?{_WORD}\s{{1,9}})({_VALUE})")
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization\s*[=:]\s*[\"']?(?:bearer|basic|token)\s+|bearer\s+)[\w.~+/=-]{6,}"
)
_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^\s/@]{4,400}@")
_KNOWN = re.compile(
    r"\b(?:npm_\w{16,}|pypi-[\w-]{16,}|sk_(?:live|test)_\w{8,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_\w{16,}|sk-[\w-]{16,}|xox[abprs]-[\w-]{10,}|nvapi-[\w-]{16,}"
    r"|A(?:KIA|SIA)[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)"
)
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)
_NUMBER = re.compile(r"[\d_.,e+-]+|true|false|none", re.I)


def mask(text: str, environment: Mapping[str, str] | None = None) -> str:
    """``text`` with secrets replaced: values of our own secret environment variables, ``name=value`` with a telling
    name, authorization headers, passwords in URLs, private keys, and tokens in the form of known services."""
    for value in _secret_values(os.environ if environment is None else environment):
        text = text.replace(value, HIDDEN)
    text = _KEY_BLOCK.sub(HIDDEN, text)
    text = _URL.sub(rf"\1{HIDDEN}@", text)
    text = _HEADER.sub(rf"\1{HIDDEN}", text)
    text = _KNOWN.sub(HIDDEN, text)
    for pattern in (_ASSIGNMENT, _FLAG):
        text = pattern.sub(lambda m: m[0] if _harmless(m[2]) else m[1] + HIDDEN, text)
    return text


HEAD, TAIL, LONGEST_LINE = 2**20, 4 * 2**20, 2**16


def mask_file(path: Path) -> None:
    """Masks a log in place, its first 1 MiB and last 4 MiB; what lies between is left out. A missing one is no error."""
    if not path.is_file():
        return
    size = path.stat().st_size
    with open(path, "rb") as log:
        parts = [log.read(HEAD)]
        if size > HEAD + TAIL:
            parts.append(f"\n[{size - HEAD - TAIL} bytes left out]\n".encode())
            log.seek(size - TAIL)
        parts.append(log.read(TAIL))
    text = b"".join(parts).decode("utf-8", "replace")
    masked = mask("\n".join(_shortened(line) for line in text.split("\n")))
    if masked != text or size > HEAD + TAIL:
        write_atomically(path, masked)


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} [{len(line) - LONGEST_LINE} characters left out]"


def _secret_values(environment: Mapping[str, str]) -> list[str]:
    named = re.compile(rf"(?i){_NAME}")
    return sorted(
        (v for k, v in environment.items() if len(v) >= 8 and named.fullmatch(k) and not _harmless(v)),
        key=len,
        reverse=True,
    )


def _harmless(value: str) -> bool:
    # pad_token = 0 and the like are numbers of the model, not secrets.
    return bool(_NUMBER.fullmatch(value.strip("\"'"))) or value.startswith(HIDDEN.rstrip("]"))
