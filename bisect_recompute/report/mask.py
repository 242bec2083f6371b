"""Secrets masked in what a run keeps: logs, error lines, tickets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from bisect_recompute.measurement.journal import write_atomically

HIDDEN = "[masked]"
# Words of a name that tell of a secret. "pass" and "pat" alone are also words of prose ("forward pass: fused").
_WORD = (
    r"(?:token|secret|passwd|password|passphrase|pwd|credentials?"
    r"|(?:api|secret|private|auth|account)[_-]?key|access[_-]?key(?:[_-]?id)?"
    r"|(?<=[_.-])(?:pass|pat)|(?:pass|pat)(?=\s{0,9}=))"
)
_NAME = rf"(?:[\w.-]*[_.-])?{_WORD}|\w*(?:password|passwd|secret)"
# The telling word is looked for, not the whole name: a search for the name costs the square of a long line of dashes.
# It begins a name or a part of one: DB_PASS, db.password, accessToken; some also stand at its end: PGPASSWORD.
_START = r"(?:(?<![a-z0-9])|(?-i:(?<=[a-z0-9])(?=[A-Z][a-z]))|(?=password|passwd|secret))"
# In quotes (the last one may be cut off), in quotes inside a quoted text, or bare.
_VALUE = (
    r"""(?:"(?:[^"\\\n]|\\.)+"?|'(?:[^'\\\n]|\\.)+'?|\\+"[^"\\\n]+(?:\\+")?|\\+'[^'\\\n]+(?:\\+')?"""
    r"""|(?:[^\s"',;&)}\]\\]|\\.)+)"""
)
_ASSIGNMENT = re.compile(rf"""(?i){_START}({_WORD}\\{{0,3}}["']?\s{{0,9}}(?:=|:)\s{{0,9}})({_VALUE})""")
_SPACED = re.compile(rf"""(?i){_START}((?P<word>{_WORD})["']?,?\s{{1,9}})({_VALUE})""")
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization\s*[=:]\s*[\"']?(?:bearer|basic|token)\s+|bearer\s+)[\w.~+/=-]{6,}"
)
# Up to the last @: a password may hold one.
_URL = re.compile(r"""(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^\s/"'<>]{4,400}@""")
_KNOWN = re.compile(
    r"\b(?:npm_\w{16,}|pypi-[\w-]{16,}|[sr]k_(?:live|test)_\w{8,}|gh[pousr]_\w{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|hf_\w{16,}|sk-[\w-]{16,}|xox[abprs]-[\w-]{10,}|nvapi-[\w-]{16,}"
    r"|A(?:KIA|SIA)[A-Z0-9]{16}|AIza[\w-]{30,}|(?<!-)eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)"
)
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)
_KEY_END = re.compile(r"-----(BEGIN|END) [A-Z ]*PRIVATE KEY-----")
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
    text = _ASSIGNMENT.sub(lambda m: m[0] if _harmless(m[2]) else m[1] + HIDDEN, text)
    return _SPACED.sub(lambda m: m[1] + HIDDEN if _is_given(m) else m[0], text)


HEAD, TAIL = 2**20, 4 * 2**20


def mask_file(path: Path) -> None:
    """Masks a log in place. Of one over 5 MiB the whole lines in its first 1 MiB and last 4 MiB stay, and a line in
    between says how many bytes were left out. A missing one is no error."""
    if not path.is_file():
        return
    size = path.stat().st_size
    with open(path, "rb") as log:
        if size <= HEAD + TAIL:
            text = log.read(HEAD + TAIL).decode("utf-8", "replace")
            masked = mask(text)
            if masked != text:
                write_atomically(path, masked)
            return
        head = log.read(HEAD)
        log.seek(size - TAIL)
        tail = log.read(TAIL)
    # Half a secret would not be seen as one.
    head = head[: max(head.rfind(b"\n"), head.rfind(b"\r")) + 1]
    line_end = re.search(rb"[\r\n]", tail)
    tail = tail[line_end.end() :] if line_end else b""
    left_out = f"[{size - len(head) - len(tail)} bytes left out]\n"
    write_atomically(
        path, mask(head.decode("utf-8", "replace")) + left_out + mask(_after_key(tail.decode("utf-8", "replace")))
    )


def _after_key(text: str) -> str:
    """Without the rest of a private key that began before the text."""
    found = _KEY_END.search(text)
    return HIDDEN + text[found.end() :] if found and found[1] == "END" else text


def _secret_values(environment: Mapping[str, str]) -> list[str]:
    named = re.compile(rf"(?i){_NAME}")
    return sorted(
        (v for k, v in environment.items() if len(v) >= 8 and named.fullmatch(k) and not _harmless(v)),
        key=len,
        reverse=True,
    )


def _is_given(m: re.Match) -> bool:
    """``--api-key VALUE``, or ``API_KEY VALUE`` where the value is no word of prose."""
    value = m[3]
    if _harmless(value):
        return False
    before = m.string[max(0, m.start() - 64) : m.start()]
    flag = "--" in before and "--" in re.split(r"\s", before)[-1]
    random = len(value) >= 8 and any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
    return flag or (m["word"].isupper() and random)


def _harmless(value: str) -> bool:
    # pad_token = 0 and the like are numbers of the model, not secrets.
    value = value.strip("\\\"'")
    return bool(_NUMBER.fullmatch(value)) or value.startswith(HIDDEN.rstrip("]"))
