"""Runs the probes that a search asks for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, Union

from bisect_recompute.driver.search import Search, Side

R = TypeVar("R")


@dataclass(frozen=True)
class ProbeStarted:
    index: int


@dataclass(frozen=True)
class ProbeFinished:
    index: int
    result: Any
    side: Side


@dataclass(frozen=True)
class ProbeAbandoned:
    """A running probe that no longer matters: its result will not be waited for."""

    index: int


@dataclass(frozen=True)
class Reused:
    """A candidate whose side is known without a probe of its own."""

    index: int
    result: Any
    side: Side


@dataclass(frozen=True)
class Narrowed:
    commits_left: int
    expected_probes: int


Event = Union[ProbeStarted, ProbeFinished, ProbeAbandoned, Reused, Narrowed]


def bisect(
    search: Search,
    probe: Callable[[int], R],
    side: Callable[[R], Side],
    known: Callable[[int], R | None] = lambda index: None,
    jobs: int = 1,
    on_event: Callable[[Event], None] = lambda event: None,
) -> dict[int, R]:
    """Probes until the search is finished; returns every answer taken in, by candidate.

    ``probe`` runs in threads, up to ``jobs`` at once, a new one as soon as one ends; everything else is called in the
    calling thread. ``known`` is asked about every suspect before each new probe. An exception of a callable, and
    KeyboardInterrupt, go up at once: probes still running are left to the caller to kill, their results are dropped.
    """
    return Run(search, probe, side, known, on_event).until_finished(jobs)


class Run:
    """Threads around a search that is asked in the calling one."""

    def __init__(self, search, probe, side, known, on_event):
        self.search, self.probe, self.side, self.known, self.on_event = search, probe, side, known, on_event
        self.results: dict[int, Any] = {}
        self.running: set[int] = set()
        self._done: queue.SimpleQueue = queue.SimpleQueue()

    def until_finished(self, jobs: int) -> dict[int, Any]:
        self.reuse()
        while not self.search.finished:
            self.start(jobs)
            self.wait()
            self.reuse()
        for index in sorted(self.running):
            self.on_event(ProbeAbandoned(index))
        return self.results

    def reuse(self) -> None:
        """Takes in what is known without a probe, as far as it narrows the search."""
        found = {}
        for index in self.search.suspects[:-1]:  # The last one is known to be bad.
            if index not in self.results and index not in self.running:
                result = self.known(index)
                if result is not None:
                    found[index] = (result, self.side(result))
        # The newest good and the oldest bad say it all; most of the others then add nothing.
        order = {"good": lambda i: (0, -i), "bad": lambda i: (1, i), "skip": lambda i: (2, i)}
        for index in sorted(found, key=lambda i: order[found[i][1]](i)):
            result, side = found[index]
            if index in self.search.suspects and index not in self.results:
                before = self.search.suspects
                self.search.record(index, side)
                if side == "skip" or self.search.suspects != before:
                    self.results[index] = result
                    self.on_event(Reused(index, result, side))
        self.on_event(Narrowed(len(self.search.suspects), self.search.expected_probes_left()))

    def start(self, jobs: int) -> None:
        for index in self.search.next(jobs - len(self.running), pending=self.running):
            self.running.add(index)
            self.on_event(ProbeStarted(index))
            # Daemon: an interrupted run must not wait at exit for a probe that nobody reads.
            threading.Thread(target=self._work, args=(index,), name=f"probe-{index}", daemon=True).start()

    def wait(self) -> None:
        index, result, error = self._done.get()
        self.running.remove(index)
        if error is not None:
            raise error
        side = self.side(result)
        self.results[index] = result
        self.search.record(index, side)
        self.on_event(ProbeFinished(index, result, side))

    def _work(self, index: int) -> None:
        try:
            self._done.put((index, self.probe(index), None))
        except BaseException as error:
            self._done.put((index, None, error))
