"""A user's repository, read and never written."""

from __future__ import annotations

import difflib
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bisect_recompute.errors import UsageError
from bisect_recompute.history.commit import ChangedPath, Commit, CommitRange
from bisect_recompute.history.git import Git, GitFailed
from bisect_recompute.history.objects import MODE_SUBMODULE, MODE_TREE, Objects, TreeEntry, parse_tree

_FORMAT = "--format=%H%x00%P%x00%an%x00%aI%x00%s%x00"
_DIRECTION = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Repository:
    """A clone or a bare repository, found from any directory inside it.

    Raises UsageError where ``path`` is in no repository or in a shallow clone. Thread-safe.
    """

    def __init__(self, path: Path):
        path = Path(path)
        if not path.is_dir():
            raise UsageError(f"not a repository: there is no directory {path}")
        # GitPython's Repo follows GIT_COMMON_DIR, passes GIT_CEILING_DIRECTORIES, and opens what git does not trust.
        try:
            self.git_dir = Path(Git("-C", str(path)).line("rev-parse", "--absolute-git-dir"))
        except GitFailed as error:
            raise UsageError(_not_a_repository(path, error)) from None
        self._git = Git.at(self.git_dir)
        if self._git.line("rev-parse", "--is-shallow-repository") == "true":
            raise UsageError(f"{path} is a shallow clone, its history ends early: run `git -C {path} fetch --unshallow`")
        self.common_dir = Path(os.path.realpath(self.git_dir / self._git.line("rev-parse", "--git-common-dir")))
        """Where the objects are: the same for all work trees of one clone."""
        self.lacks_files = False
        """A file that was asked for is not in the clone (a partial clone): what was made of others may be wrong."""
        self._objects = Objects(self._git)
        self._entries: dict[str, list[TreeEntry]] = {}
        self._trees: dict[tuple[str, str], dict[str, str]] = {}

    @property
    def name(self) -> str:
        try:
            url = self._git.line("config", "--get", "remote.origin.url")
        except GitFailed:
            url = ""
        # A path as origin (a mirror on disk) says less than the clone's own directory.
        if re.match(r"[\w+.-]+://|[^/]+:", url):
            name = re.split(r"[/:]", url.rstrip("/"))[-1]
        else:
            name = (self.common_dir.parent if self.common_dir.name == ".git" else self.common_dir).name
        return _one_line(name.removesuffix(".git")) or "repository"

    def commit(self, revision: str) -> Commit:
        """The commit of anything ``git rev-parse`` takes. Raises UsageError for an unknown revision."""
        return self._commits("--no-walk", self._sha(revision))[0]

    def range(self, spec: str, first_parent: bool = True) -> CommitRange:
        """The candidates of ``GOOD..BAD``: ``git rev-list [--first-parent] GOOD..BAD``, oldest first.

        Raises UsageError, one line: malformed, unknown revision, equal, reversed, or BAD not a descendant of GOOD.
        """
        good, bad = (self.commit(side) for side in _sides(spec))
        if good.sha == bad.sha:
            raise UsageError(f"the range {_one_line(spec)} is empty: good and bad are the same commit {good.sha[:10]}")
        if not self._is_ancestor(good.sha, bad.sha):
            raise UsageError(self._not_a_descendant(spec, good, bad))
        follow = ["--first-parent"] if first_parent else []
        commits = self._commits("--topo-order", "--reverse", *follow, f"{good.sha}..{bad.sha}")
        return CommitRange(self.name, good, bad, tuple(commits))

    def tree(self, sha: str, prefix: str = "") -> Mapping[str, str]:
        """Path -> blob id of every file of the commit (under the directory ``prefix``), recursive, no submodules.

        Commits with the same content under ``prefix`` get the very same mapping; do not change it.
        """
        top, path = self._below(sha, prefix)
        if top is None or top.mode == MODE_SUBMODULE:
            return {}
        return self._ids(top.id, path) if top.mode == MODE_TREE else {path: top.id}

    def files(self, sha: str) -> dict[str, TreeEntry]:
        """Every path of the commit with its mode, submodules included."""
        return dict(self._walk(*self._below(sha, "")))

    def submodules(self, sha: str) -> dict[str, str]:
        """Path -> commit id of every submodule of the commit."""
        return {path: entry.id for path, entry in self.files(sha).items() if entry.mode == MODE_SUBMODULE}

    def read_blob(self, blob: str) -> bytes | None:
        """The content of a file; None where the clone lacks it (partial clone)."""
        found = self._objects.read(blob)
        self.lacks_files |= found is None
        return None if found is None else found[1]

    def changed_paths(self, commit: Commit) -> list[ChangedPath]:
        """What the commit changes against its first parent (against nothing for a root commit), no rename detection."""
        return self.changes_in([commit])[commit.sha]

    def changes_in(self, commits: Iterable[Commit]) -> dict[str, list[ChangedPath]]:
        """``changed_paths`` of many commits, by sha, with one git process."""
        # GitPython's Commit.diff() starts git anew for each commit.
        commits = list(commits)
        changes: dict[str, list[ChangedPath]] = {commit.sha: [] for commit in commits}
        asked = "".join(f"{' '.join((c.sha, *c.parents[:1]))}\n" for c in commits)
        raw = self._git.run(
            "diff-tree", "--stdin", "-r", "-z", "--raw", "--root", "--no-abbrev", "--no-renames",
            "--ignore-submodules=none", input=asked.encode(),
        )
        current: list[ChangedPath] = []
        fields = iter(raw.split(b"\0")[:-1])
        for head in fields:
            if head.startswith(b":"):
                current.append(_changed(head[1:].decode().split(), os.fsdecode(next(fields))))
            else:
                current = changes[head.decode()]
        return changes

    def close(self) -> None:
        self._objects.close()

    def _sha(self, revision: str) -> str:
        shown = _one_line(revision)
        if not revision or revision.startswith("-") or "\0" in revision or "\n" in revision:
            raise UsageError(f"unknown revision '{shown}': expected a commit, tag or branch")
        try:
            return self._git.line("rev-parse", "--verify", f"{revision}^{{commit}}")
        except GitFailed as error:
            reason = error.stderr
        if "is ambiguous" in reason:
            raise UsageError(f"revision '{shown}' is ambiguous in {self.name}: give more digits of the commit id")
        try:
            # `:/text` swallows the ^{commit} behind it; other things than commits are told apart here too.
            found = self._git.line("rev-parse", "--verify", revision)
            kind = self._git.line("cat-file", "-t", found)
        except GitFailed:
            raise UsageError(f"unknown revision '{shown}' in {self.name}{self._hint(revision)}") from None
        if kind != "commit":
            raise UsageError(f"revision '{shown}' is a {kind}, not a commit")
        return found

    def _hint(self, revision: str) -> str:
        if re.fullmatch(r"[0-9a-f]{7,64}", revision):
            return ": is it in this clone? `git fetch` may bring it"
        # GitPython's references fail on names that are not UTF-8.
        refs = self._git.line("for-each-ref", "--format=%(refname:short)").splitlines()
        # `core_r0.14.0` exists as `origin/core_r0.14.0` in a fresh clone.
        by_last = {ref.rpartition("/")[2]: ref for ref in reversed(refs)}
        near = difflib.get_close_matches(revision, refs, n=1) or difflib.get_close_matches(revision, by_last, n=1)
        exact = by_last.get(revision)
        name = exact or (by_last.get(near[0], near[0]) if near else None)
        return f": did you mean '{_one_line(name)}'?" if name else ": no branch or tag has a name like it"

    def _is_ancestor(self, old: str, new: str) -> bool:
        try:
            self._git.run("merge-base", "--is-ancestor", old, new)
        except GitFailed as error:
            if error.code != 1:
                raise
            return False
        return True

    def _not_a_descendant(self, spec: str, good: Commit, bad: Commit) -> str:
        old, new = (_one_line(side) for side in _sides(spec))
        if self._is_ancestor(bad.sha, good.sha):
            return f"the range {old}..{new} is reversed, bad is an ancestor of good: did you mean {new}..{old}?"
        try:
            base = self._git.line("merge-base", good.sha, bad.sha)
        except GitFailed:
            return f"bad {new} is not a descendant of good {old}: they have no common history"
        return (
            f"bad {new} is not a descendant of good {old}: they part at {base[:10]}; "
            f"{base[:10]}..{new} is a range if that commit is good"
        )

    def _commits(self, *args: str) -> list[Commit]:
        # GitPython's iter_commits() fails on SHA-256, and its summary is not git's subject where that spans lines.
        fields = self._git.run("rev-list", "--encoding=UTF-8", _FORMAT, *args, "--").split(b"\0")
        records = zip(*(fields[i:-1:5] for i in range(5)))
        return [
            Commit(
                sha=head.rsplit(b"\n", 1)[-1].decode(),
                subject=_text(subject),
                author=_text(author),
                date=date.decode(),
                parents=tuple(parents.decode().split()),
            )
            for head, parents, author, date, subject in records
        ]

    def _below(self, sha: str, prefix: str) -> tuple[TreeEntry | None, str]:
        """The entry of a commit at a path (None: nothing there), and the path without slashes at its ends."""
        found = self._objects.read(sha)
        if found is None or found[0] != "commit":
            raise UsageError(f"the clone lacks commit {sha}: `git fetch` may bring it")
        entry = TreeEntry(MODE_TREE, b"", found[1].split(b"\n", 1)[0].split()[1].decode())
        prefix = prefix.strip("/")
        for part in os.fsencode(prefix).split(b"/") if prefix else ():
            below = self._read_tree(entry.id) if entry.mode == MODE_TREE else ()
            entry = next((e for e in below if e.name == part), None)
            if entry is None:
                break
        return entry, prefix

    def _ids(self, tree: str, path: str) -> dict[str, str]:
        # Neighbouring commits share nearly all of their trees: of a range only what changes is put together anew.
        key = (tree, path)
        if key not in self._trees:
            ids: dict[str, str] = {}
            for mode, name, object_id in self._read_tree(tree):
                below = _join(path, name)
                if mode == MODE_TREE:
                    ids.update(self._ids(object_id, below))
                elif mode != MODE_SUBMODULE:
                    ids[below] = object_id
            self._trees[key] = ids
        return self._trees[key]

    def _walk(self, entry: TreeEntry, path: str) -> Iterator[tuple[str, TreeEntry]]:
        if entry.mode != MODE_TREE:
            yield path, entry
            return
        for below in self._read_tree(entry.id):
            yield from self._walk(below, _join(path, below.name))

    def _read_tree(self, tree: str) -> list[TreeEntry]:
        if tree not in self._entries:
            found = self._objects.read(tree)
            if found is None or found[0] != "tree":
                raise UsageError(f"the clone lacks the file list {tree}: it is a partial clone without trees")
            self._entries[tree] = parse_tree(found[1], len(tree) // 2)
        return self._entries[tree]


def repository_path(repository: Repository) -> str:
    """What a user would give as ``--repo``."""
    folder = repository.git_dir
    return str(folder.parent if folder.name == ".git" else folder)


def _join(folder: str, name: bytes) -> str:
    return sys.intern(f"{folder}/{os.fsdecode(name)}" if folder else os.fsdecode(name))


def _not_a_repository(path: Path, error: GitFailed) -> str:
    if "dubious ownership" in error.stderr:
        return f"git does not trust {path}, another user owns it: run `git config --global --add safe.directory {path}`"
    return f"not a repository: {path} is in no git clone ({error})"


def _sides(spec: str) -> tuple[str, str]:
    good, dots, bad = spec.partition("..")
    if not dots or not good.strip() or not bad.strip() or bad.startswith(".") or ".." in bad:
        raise UsageError(f"malformed range '{_one_line(spec)}': write GOOD..BAD, two revisions with two dots between")
    return good.strip(), bad.strip()


def _changed(raw: list[str], path: str) -> ChangedPath:
    old_mode, new_mode, old, new, status = raw
    blobs, commits = [], []
    for mode, object_id in ((old_mode, old), (new_mode, new)):
        found = object_id if object_id.strip("0") else None
        submodule = int(mode, 8) == MODE_SUBMODULE
        blobs.append(None if submodule else found)
        commits.append(found if submodule else None)
    return ChangedPath(status[0], path, *blobs, *commits)


def _text(raw: bytes) -> str:
    return _one_line(raw.decode("utf-8", "replace"))


def _one_line(text: str) -> str:
    """Commit text is a stranger's: nothing in it may steer a terminal or reorder a line."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in _DIRECTION
        else c
        for c in text
    )
