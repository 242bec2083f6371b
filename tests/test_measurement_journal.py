import json
import multiprocessing
import os
import threading
from dataclasses import asdict, replace

import pytest
from probe_results import result, tensors

from bisect_recompute.errors import UsageError
from bisect_recompute.measurement.journal import Manifest, new_journal, open_journal, read_manifest, read_results

MANIFEST = Manifest(
    repository="/clone/.git",
    good="a" * 40,
    bad="b" * 40,
    first_parent=True,
    recipe="tiny",
    recipe_spec="recipes/tiny.yaml",
    recipe_text="model: {}\n",
    recipe_function=False,
    probe="simulate",
    metric="any",
    direction="worse",
    memory_threshold=1.0,
    throughput_threshold=5.0,
    timeout=120.0,
    versions={"torch": "2.13.0"},
)
FULL = result(
    "c" * 40,
    peak=5,
    tflops=2.5,
    modules={"megatron/a.py": "1"},
    absent=("megatron/b.py",),
    notes=("said",),
    tensors=[tensors("decoder.layers.*.mlp", (4, 2), 3)],
    log="logs/c.log",
)


def test_results_come_back_as_they_were(tmp_path):
    out = tmp_path / "deep" / "run"
    with new_journal(out, MANIFEST) as journal:
        journal.append(FULL)
        journal.append(result("d" * 40, status="failed", reason="Traceback …\u202e"))
    assert read_results(out) == {
        "c" * 40: FULL,
        "d" * 40: result("d" * 40, status="failed", reason="Traceback …\u202e"),
    }
    assert read_manifest(out) == MANIFEST
    first = json.loads((out / "probes.jsonl").read_text().splitlines()[0])
    assert (first["commit"], first["status"], first["memory"]["peak_bytes"], first["seconds"], first["log"]) == (
        "c" * 40,
        "ok",
        5,
        2.0,
        "logs/c.log",
    )
    assert first["environment"] == MANIFEST.environment


def test_a_line_cut_short_is_dropped_and_written_over(tmp_path):
    with new_journal(tmp_path / "run", MANIFEST) as journal:
        journal.append(FULL)
    path = tmp_path / "run" / "probes.jsonl"
    whole = path.read_bytes()
    for cut in (1, 20, len(whole) - 1):
        path.write_bytes(whole + whole[:cut])
        with open_journal(tmp_path / "run") as journal:
            assert list(journal.results) == ["c" * 40]
            journal.append(result("e" * 40, peak=1))
        assert list(read_results(tmp_path / "run")) == ["c" * 40, "e" * 40]
        assert len(path.read_bytes().splitlines()) == 2


def test_a_damaged_line_in_the_middle_costs_itself_only(tmp_path):
    with new_journal(tmp_path / "run", MANIFEST) as journal:
        journal.append(FULL)
    path = tmp_path / "run" / "probes.jsonl"
    path.write_bytes(b'{"commit": 1}\n' + path.read_bytes())
    with open_journal(tmp_path / "run") as journal:
        assert (journal.results, journal.damaged) == ({FULL.revision: FULL}, 1)


def test_a_second_run_over_the_same_folder_is_refused_with_the_way_out(tmp_path):
    out = tmp_path / "run"
    with new_journal(out, MANIFEST):
        with pytest.raises(UsageError, match="another bisect-recompute is at work in"):
            with new_journal(out, MANIFEST):
                pass
    with pytest.raises(UsageError, match=r"unfinished; go on with it: bisect-recompute resume .*run$"):
        with new_journal(out, MANIFEST):
            pass
    with pytest.raises(
        UsageError, match=r"holds another run \(aaaaaaaaaa..bbbbbbbbbb, tiny\); give another folder with --out"
    ):
        with new_journal(out, replace(MANIFEST, recipe_text="model: {num_layers: 2}\n")):
            pass
    (out / "verdict.json").write_text("{}")
    with pytest.raises(UsageError, match="holds this run already, finished"):
        with new_journal(out, MANIFEST):
            pass


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match=r"is not empty \(thesis.tex is there\) and holds no run"):
        with new_journal(tmp_path, MANIFEST):
            pass
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot use .*file/run: Not a directory; give another folder with --out"):
        with new_journal(tmp_path / "file" / "run", MANIFEST):
            pass


def test_resume_needs_a_run_and_the_same_versions(tmp_path):
    with pytest.raises(UsageError, match="no run in .*: it has no manifest.json"):
        with open_journal(tmp_path):
            pass
    with new_journal(tmp_path / "run", MANIFEST):
        pass
    with pytest.raises(UsageError, match="began with torch 2.13.0, here is 2.14.0: measurements would not compare"):
        with open_journal(tmp_path / "run", {"torch": "2.14.0"}):
            pass


def test_the_environment_key_follows_the_versions():
    assert MANIFEST.environment == Manifest(**asdict(MANIFEST)).environment
    assert MANIFEST.environment != replace(MANIFEST, versions={"torch": "2.14.0"}).environment


def test_appending_from_threads_loses_nothing(tmp_path):
    with new_journal(tmp_path / "run", MANIFEST) as journal:
        threads = [
            threading.Thread(target=journal.append, args=(replace(FULL, revision=f"{i:040x}"),)) for i in range(32)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(read_results(tmp_path / "run")) == [f"{i:040x}" for i in range(32)]


def _append_and_die(out):
    with new_journal(out, MANIFEST) as journal:
        journal.append(FULL)
        os.kill(os.getpid(), 9)


def test_a_killed_run_keeps_its_probes_and_frees_its_lock(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=_append_and_die, args=(tmp_path / "run",))
    process.start()
    process.join(60)
    assert process.exitcode == -9
    with open_journal(tmp_path / "run") as journal:
        assert journal.results == {"c" * 40: FULL}
