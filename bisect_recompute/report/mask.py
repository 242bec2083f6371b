"""Secrets masked in what a run keeps: logs, error lines, tickets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from bisect_recompute.measurement.journal import write_atomically

HIDDEN = "[masked]"
_NAME = (
    r"(?:[\w.-]*[_.-])?(?:token|secret|passwd|password|passphrase|pwd|credentials?"
    r"|(?:api|secret|private|auth)[_-]?key|access[_-]?key(?:[_-]?id)?)"
)
_VALUE = r"""(?:"[^"\n]+"|'[^'\n]+'|[^\s"',;&)}\]]+)"""
_ASSIGNMENT = re.compile(rf"""(?i)(?<![\w])(["']?{_NAME}["']?\s*(?:=|:)\s*)({_VALUE})""")
_FLAG = re.compile(rf"(?i)(--{_NAME}\s+)({_VALUE})")
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization\s*[=:]\s*[\"']?(?:bearer|basic|token)\s+|bearer\s+)[\w.~+/=-]{6,}"
)
_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:]*:[^\s/@]+@")
_KNOWN = re.compile(
    r"\b(?:gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_\w{16,}|sk-[\w-]{16,}|xox[abprs]-[\w-]{10,}|nvapi-[\w-]{16,}"
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


def mask_file(path: Path) -> None:
    """Masks a log in place; a missing one is no error."""
    if not path.is_file():
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    masked = mask(text)
    if masked != text:
        write_atomically(path, masked)


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
