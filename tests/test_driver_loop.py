import math
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_recompute.driver.loop import Narrowed, ProbeAbandoned, ProbeFinished, ProbeStarted, Reused, bisect
from bisect_recompute.driver.search import Search


def same(side):
    return side


class Probes:
    """Probes whose ends the test decides."""

    def __init__(self, answers):
        self.answers = answers
        self.gates = {i: threading.Event() for i in range(len(answers))}
        self.started = {i: threading.Event() for i in range(len(answers))}

    def __call__(self, index):
        self.started[index].set()
        assert self.gates[index].wait(20)
        return self.answers[index]

    def end(self, index):
        assert self.started[index].wait(20)
        self.gates[index].set()

    def running(self):
        return {i for i in self.gates if self.started[i].is_set() and not self.gates[i].is_set()}


def in_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()

    def result():
        thread.join(20)
        assert not thread.is_alive()
        return found[0]

    return result


def history(n, culprit):
    return ["bad" if i >= culprit else "good" for i in range(n)]


def test_one_at_a_time(capsys):
    answers, events = history(8, 5), []
    search = Search([1.0] * 8)
    results = bisect(search, answers.__getitem__, same, on_event=events.append)
    assert search.culprit == 5
    assert results == {3: "good", 5: "bad", 4: "good"}
    assert events == [
        Narrowed(8, 3),
        ProbeStarted(3), ProbeFinished(3, "good", "good"), Narrowed(4, 2),
        ProbeStarted(5), ProbeFinished(5, "bad", "bad"), Narrowed(2, 1),
        ProbeStarted(4), ProbeFinished(4, "good", "good"), Narrowed(1, 0),
    ]  # fmt: skip
    assert capsys.readouterr() == ("", "")


def test_nothing_to_probe_in_a_range_of_one():
    events = []
    assert bisect(Search([1.0]), None, same, on_event=events.append) == {}
    assert events == [Narrowed(1, 0)]


def test_a_new_probe_starts_as_soon_as_one_ends():
    probes = Probes(history(100, 90))
    search = Search([1.0] * 100)
    result = in_thread(lambda: bisect(search, probes, same, jobs=2))
    assert probes.started[32].wait(20) and probes.started[66].wait(20)
    probes.end(32)  # good; 66 goes on
    third = next_started(probes, {32, 66})
    assert third in (49, 82) and 66 in probes.running()
    for gate in probes.gates.values():
        gate.set()
    assert result()[66] == "good" and search.culprit == 90


def next_started(probes, known):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        new = {i for i in probes.started if probes.started[i].is_set()} - known
        if new:
            return new.pop()
        time.sleep(0.005)
    raise AssertionError("no new probe was started")


def test_the_end_does_not_wait_for_probes_that_no_longer_matter():
    probes, events = Probes(history(3, 0)), []
    search = Search([1.0] * 3)
    result = in_thread(lambda: bisect(search, probes, same, jobs=2, on_event=events.append))
    assert probes.started[1].wait(20)
    probes.end(0)  # bad, and the oldest: 1 is still running
    assert result() == {0: "bad"}
    assert search.culprit == 0
    assert events[-1] == ProbeAbandoned(1)
    probes.end(1)


def test_never_more_than_jobs_at_once():
    lock, now, most = threading.Lock(), 0, 0

    def probe(index):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.01)
        with lock:
            now -= 1
        return "bad" if index >= 300 else "good"

    search = Search([1.0] * 500)
    bisect(search, probe, same, jobs=3)
    assert search.culprit == 300 and most == 3


def test_callbacks_stay_in_the_calling_thread():
    threads = set()

    def note(value):
        threads.add(threading.current_thread())
        return value

    def known(index):
        threads.add(threading.current_thread())

    bisect(Search([1.0] * 30), history(30, 11).__getitem__, note, known, jobs=4, on_event=note)
    assert threads == {threading.current_thread()}


@settings(max_examples=40)
@given(st.integers(1, 120), st.integers(1, 5), st.randoms(use_true_random=False), st.data())
def test_any_order_of_answers_names_the_culprit(n, jobs, rng, data):
    culprit = data.draw(st.integers(0, n - 1))
    skips = data.draw(st.sets(st.integers(0, max(n - 2, 0)), max_size=3)) - {n - 1}
    answers = ["skip" if i in skips else side for i, side in enumerate(history(n, culprit))]
    delays = [rng.random() / 1000 for _ in range(n)]
    probed = []

    def probe(index):
        probed.append(index)
        time.sleep(delays[index])
        return answers[index]

    search = Search([rng.choice([1.0, 10.0]) for _ in range(n)])
    bisect(search, probe, same, jobs=jobs)
    last_good = max((i for i in range(culprit) if i not in skips), default=-1)
    first_bad = min(i for i in range(culprit, n) if i not in skips)
    assert search.suspects == list(range(last_good + 1, first_bad + 1))
    assert len(set(probed)) == len(probed)
    assert n - 1 not in probed


# Known without a probe


def test_candidates_with_the_same_code_share_one_probe():
    """300 commits, of which 20 change code that the probe loads: probes are spent on the 20 only."""
    rng = random.Random(1)
    for _ in range(20):
        changes = set(rng.sample(range(1, 300), 20))
        code, codes = 0, []
        for i in range(300):
            code += i in changes
            codes.append(code)
        first_bad = rng.randint(1, 20)
        results, probed, events = {}, [], []

        def probe(index):
            probed.append(index)
            return codes[index]

        def known(index):
            # -1 and 299 stand for the endpoints, which the caller has probed.
            return next((c for c in [0, codes[299], *results.values()] if c == codes[index]), None)

        def note(event):
            events.append(event)
            if isinstance(event, (ProbeFinished, Reused)):
                results[event.index] = event.result

        search = Search([1.0] * 300)
        found = bisect(search, probe, lambda c: "bad" if c >= first_bad else "good", known, on_event=note)
        assert search.culprit == codes.index(first_bad)
        assert len(probed) <= math.ceil(math.log2(20)) + 2
        assert len({codes[i] for i in probed}) == len(probed)
        assert found == results


def test_results_of_an_earlier_run_are_used_wherever_they_lie():
    earlier = {17: "good", 5: "good", 40: "bad", 77: "bad", 30: "skip"}
    events = []
    search = Search([1.0] * 100)
    results = bisect(search, history(100, 29).__getitem__, same, earlier.get, on_event=events.append)
    assert search.culprit == 29
    # 5 and 77 add nothing to 17 and 40.
    assert [e.index for e in events if isinstance(e, Reused)] == [17, 40, 30]
    assert events[:4] == [Reused(17, "good", "good"), Reused(40, "bad", "bad"), Reused(30, "skip", "skip"), Narrowed(23, 5)]
    assert all(17 < e.index < 40 for e in events if isinstance(e, ProbeStarted))
    assert 5 not in results and results[17] == "good"


def test_a_finished_run_is_repeated_without_probes():
    answers = history(50, 31)
    first = bisect(Search([1.0] * 50), answers.__getitem__, same)
    search = Search([1.0] * 50)
    bisect(search, None, same, first.get)
    assert search.culprit == 31


def test_known_is_asked_before_a_probe_starts():
    asked = []

    def known(index):
        asked.append(index)

    def probe(index):
        assert index in asked
        return "bad"

    bisect(Search([1.0] * 20), probe, same, known)
    assert sorted(set(asked)) == list(range(19))  # 19 is the bad endpoint


# Trouble


@pytest.mark.parametrize("where", ["probe", "side", "known", "on_event"])
def test_exceptions_of_a_callable_go_up(where):
    def broken(*_):
        raise RuntimeError(where)

    calls = dict(probe=lambda i: "bad", side=same, known=lambda i: None, on_event=lambda e: None) | {where: broken}
    with pytest.raises(RuntimeError, match=where):
        bisect(Search([1.0] * 9), **calls)


def test_an_exception_does_not_wait_for_other_probes():
    gate = threading.Event()

    def probe(index):
        if index == 2:
            gate.wait(20)
            return "good"
        raise OSError("disk")

    start = time.monotonic()
    with pytest.raises(OSError, match="disk"):
        bisect(Search([1.0] * 9), probe, same, jobs=2)
    assert time.monotonic() - start < 5
    gate.set()


def test_all_skipped_ends_inconclusive():
    search = Search([1.0] * 6)
    bisect(search, lambda i: "skip", same, jobs=2)
    assert search.finished and search.culprit is None and search.suspects == [0, 1, 2, 3, 4, 5]


def test_ctrl_c_stops_at_once_with_probes_running():
    code = textwrap.dedent("""
        import signal, time
        # A shell's background job is born deaf to Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from bisect_recompute.driver.loop import bisect
        from bisect_recompute.driver.search import Search
        def probe(index):
            print("started", flush=True)
            time.sleep(60)
        try:
            bisect(Search([1.0] * 100), probe, lambda r: r, jobs=2)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert [child.stdout.readline() for _ in range(2)] == ["started\n"] * 2
    start = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=20)[0] == "interrupted\n"
    assert child.returncode == 0 and time.monotonic() - start < 5
