import os
import sqlite3
import time
from dataclasses import replace

import pytest
from probe_results import result

from bisect_recompute.measurement.same_code import SameCode
from bisect_recompute.measurement.store import FILE, Store, prune

TREE = {"megatron/core/mlp.py": "1" * 40, "megatron/core/__init__.py": "2" * 40}
MEASURED = result("a" * 40, peak=5, tflops=1.5, modules=TREE, absent=("megatron/core/extra.py",))


def found(store, tree):
    known = SameCode(lambda sha: tree)
    for entry in store.entries():
        known.add_entry(*entry)
    return known.find("f" * 40)


def test_an_equal_fingerprint_is_found_by_a_later_run(tmp_path):
    Store(tmp_path, "recipe").add(MEASURED)
    later = Store(tmp_path, "recipe")
    assert found(later, TREE | {"README.md": "3" * 40}) == MEASURED
    for other in (TREE | {"megatron/core/mlp.py": "9" * 40}, TREE | {"megatron/core/extra.py": "9" * 40}, {}):
        assert found(later, other) is None
    assert found(Store(tmp_path, "another recipe"), TREE) is None


def test_only_measurements_are_kept(tmp_path):
    store = Store(tmp_path, "recipe")
    for other in (replace(MEASURED, status="failed"), replace(MEASURED, status="timeout"), result(peak=1)):
        store.add(other)
    assert store.entries() == []
    store.add(replace(MEASURED, status="oom"))
    assert found(store, TREE).status == "oom"


def test_another_environment_is_another_measurement(tmp_path, monkeypatch):
    Store(tmp_path, "recipe").add(MEASURED)
    monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
    assert Store(tmp_path, "recipe").entries() == []
    monkeypatch.delenv("NVTE_FLASH_ATTN")
    (tmp_path / "site" / "einops-9.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert Store(tmp_path, "recipe").entries() == []


def test_a_file_that_cannot_be_used_is_only_forgotten(tmp_path):
    (tmp_path / FILE).write_bytes(b"no database" * 1000)
    store = Store(tmp_path, "recipe")
    assert store.entries() == [] and not (tmp_path / FILE).exists()
    store.add(MEASURED)
    assert found(store, TREE) == MEASURED
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("UPDATE results SET content = x'00'")
    assert found(store, TREE) is None
    (tmp_path / "file").write_text("")
    broken = Store(tmp_path / "file", "recipe")
    broken.add(MEASURED)
    assert broken.entries() == []


def test_tables_of_another_version_are_replaced(tmp_path):
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("CREATE TABLE results (key TEXT, footprint INTEGER)")
    store = Store(tmp_path, "recipe")
    store.add(MEASURED)
    assert found(store, TREE) == MEASURED == found(Store(tmp_path, "recipe"), TREE)


def test_pruned_by_age_and_size(tmp_path):
    store, path = Store(tmp_path, "recipe"), tmp_path / FILE
    trees = [TREE | {"megatron/core/mlp.py": f"{n}" * 40} for n in range(4)]
    for number, tree in enumerate(trees):
        store.add(result(f"{number}" * 40, peak=number + 1, modules=tree))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE results SET used = ?", (time.time() - 100,))
    assert found(store, trees[2]).memory.peak_bytes == 3  # used now
    assert found(store, trees[3]).memory.peak_bytes == 4
    prune(path, time.time() - 50, 10**9)
    assert [found(store, tree) is not None for tree in trees] == [False, False, True, True]
    (size,) = sqlite3.connect(path).execute("SELECT max(length(content) + length(proof)) FROM results").fetchone()
    found(store, trees[2])
    prune(path, 0, size)
    assert [found(store, tree) is not None for tree in trees] == [False, False, True, False]
    prune(path, 0, 0)
    assert store.entries() == [] and os.path.getsize(path) < 100_000


@pytest.mark.parametrize("changed", [{"megatron/core/mlp.py": "9" * 40}, {"megatron/core/extra.py": "9" * 40}])
def test_of_many_measurements_the_one_that_holds(changed):
    trees = {"1" * 40: TREE, "2" * 40: TREE | changed, "3" * 40: TREE | {"README.md": "4" * 40}}
    known = SameCode(trees.__getitem__)
    assert known.find("3" * 40) is None
    known.add(MEASURED)
    assert known.find("2" * 40) is None
    assert known.find("3" * 40) == MEASURED == known.find("3" * 40)
    other = result("b" * 40, peak=7, modules={path: blob for path, blob in trees["2" * 40].items()})
    known.add(other)
    assert known.find("2" * 40) == other
