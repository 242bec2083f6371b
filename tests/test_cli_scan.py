"""Scans through the real command line, on the installed Megatron Core's own code."""

import json
import os
import re
import signal
import xml.etree.ElementTree as ElementTree

import jsonschema
import pytest
from command_line import KEPT_BYTES, RECIPE, call, megatron_history, refused, start, subject
from test_cli_resume import ended, lines_of, started, wait_for


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cli-scan-cache")


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return megatron_history(tmp_path_factory.getbasetemp())


@pytest.fixture
def arguments(history, tmp_path):
    (tmp_path / "small.yaml").write_text(RECIPE)
    span = history.range("base", "tip")
    return "scan", span, "--repo", history.repo.path, "--recipe", tmp_path / "small.yaml", "--out", tmp_path / "out", "--no-cache"


def test_the_timeline_and_its_shift(arguments, history, cache, tmp_path):
    done = call(*arguments, "--metric", "memory", cwd=tmp_path, cache=cache)
    assert done.returncode == 0
    title, header, row = done.stdout.splitlines()[:3]
    base, kept, tip = (history.shas[name][:10] for name in ("base", "kept", "tip"))
    assert title == f"1 shift in {base}..{tip}" and header.split()[:2] == ["commit", "date"]
    assert row.startswith(kept) and row.rstrip().endswith(subject("kept")) and " memory " in row

    out = tmp_path / "out"
    found = json.loads((out / "scan.json").read_text())
    schema = json.loads(call("schema", "scan", cwd=tmp_path, cache=cache).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(found, schema)
    points = {point["commit"]: point for point in found["points"]}
    assert list(points) == [*history.repo.git("rev-list", "--reverse", f"{history.shas['base']}^!").split(),
                            *history.repo.git("rev-list", "--reverse", history.range("base", "tip")).split()]
    # Equal code is measured once: readme has that of base, tip that of comment2.
    for name, other in (("readme", "base"), ("tip", "comment2")):
        pair = [points[history.shas[each]] for each in (name, other)]
        assert len({point["measured_at"] for point in pair}) == 1 and len({point["memory"] for point in pair}) == 1
    broken = points[history.shas["broken"]]
    assert broken["status"] == "failed" and "SyntaxError" in broken["reason"] and broken["memory"] is None
    assert found["complete"] and found["probes"] == {"run": 6, "reused": 2, "skipped": 1,
                                                     "seconds": found["probes"]["seconds"]}
    (shift,) = found["shifts"]
    assert shift["culprit"]["commit"] == history.shas["kept"] and shift["culprit"]["last_good"] == history.shas["mended"]
    memory = shift["metrics"]["memory"]
    assert memory["bad"] - memory["good"] == KEPT_BYTES == shift["cause"]["tensors"][0]["bytes"]
    assert found["metrics"]["memory"]["bad"] - found["metrics"]["memory"]["good"] == KEPT_BYTES

    plot = ElementTree.parse(out / "timeline.svg")
    texts = [element.text for element in plot.iter("{http://www.w3.org/2000/svg}text")]
    assert history.shas["kept"][:8] in texts and "not measurable" in texts
    # A finished scan resumed says the same again and probes nothing.
    again = call("resume", out, "--json", cwd=tmp_path, cache=cache)
    assert (again.returncode, json.loads(again.stdout), len(lines_of(out))) == (0, found, 6)



def test_a_hole_before_a_shift_leaves_suspects(history, cache, tmp_path):
    (tmp_path / "small.yaml").write_text(RECIPE)
    span = history.range("base", "kept_too")
    done = call("scan", span, "--repo", history.repo.path, "--recipe", "small.yaml", "--out", "out", "--timeout", "15",
                "--json", cwd=tmp_path, cache=cache)
    assert done.returncode == 0
    (shift,) = json.loads(done.stdout)["shifts"]
    assert shift["culprit"] is None and shift["cause"]["kind"] == "unknown"
    assert shift["suspects"] == [history.shas[name] for name in ("broken_too", "loops", "kept_too")]


def test_killed_and_interrupted_then_resumed(arguments, history, cache, tmp_path):
    out = tmp_path / "out"
    process = start(*arguments, "--jobs", "1", cwd=tmp_path, cache=cache)
    wait_for(lambda: len(lines_of(out)) >= 2, process)
    children = started(process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert ended(children), "a probe outlives the tool"
    before = lines_of(out)

    process = start("resume", out, "--jobs", "1", cwd=tmp_path, cache=cache)
    wait_for(lambda: len(lines_of(out)) >= len(before) + 1, process)
    process.send_signal(signal.SIGTERM)
    said, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert told.splitlines()[-1] == f"stopped, nothing is lost; go on with: bisect-recompute resume {out}"
    # What was known by then is shown.
    assert re.search(r"\d measured|\d not asked yet", said) and not json.loads((out / "scan.json").read_text())["complete"]

    done = call("resume", out, "--json", cwd=tmp_path, cache=cache)
    assert done.returncode == 0
    (shift,) = json.loads(done.stdout)["shifts"]
    assert shift["culprit"]["commit"] == history.shas["kept"]
    commits = [json.loads(line)["commit"] for line in lines_of(out)]
    assert len(set(commits)) == len(commits) == 6 and lines_of(out)[: len(before)] == before


def test_nothing_measurable(history, cache, tmp_path):
    repo = history.repo
    tree = repo.git("rev-parse", f"{history.shas['broken']}^{{tree}}")
    second = repo.git("commit-tree", tree, "-p", history.shas["broken"], "-m", "still broken")
    (tmp_path / "small.yaml").write_text(RECIPE)
    done = call("scan", f"{history.shas['broken']}..{second}", "--repo", repo.path, "--recipe", "small.yaml", "--quiet",
                cwd=tmp_path, cache=cache)
    assert done.returncode == 5
    assert done.stderr.startswith(f"error: no revision can be measured; {history.shas['broken'][:10]}: failed: SyntaxError")
    assert refused("scan", "main..main", "--repo", repo.path, "--recipe", "small.yaml", cwd=tmp_path,
                   cache=cache).startswith("the range main..main is empty")
