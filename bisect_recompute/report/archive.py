"""``attachments.zip``: every file of a run, the same bytes for the same files."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

ARCHIVE = "attachments.zip"
_LEFT_OUT = (ARCHIVE, ".lock", ".gitignore")


def write_archive(out: Path) -> None:
    """The old archive or the new one, never half of it. Links are left out: what they lead to is no file of the run."""
    files = sorted(path for path in out.rglob("*") if path.is_file() and not path.is_symlink() and path.name not in _LEFT_OUT)
    file = tempfile.NamedTemporaryFile(dir=out, prefix=ARCHIVE, suffix=".tmp", delete=False)
    try:
        with file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                if path.suffix == ".tmp":
                    continue
                entry = zipfile.ZipInfo(path.relative_to(out).as_posix())  # dated 1980
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, path.read_bytes())
        os.chmod(file.name, 0o644)
        os.replace(file.name, out / ARCHIVE)
    except BaseException:
        os.unlink(file.name)
        raise
