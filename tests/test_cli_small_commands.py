"""schema, ticket, doctor, help."""

import json

import jsonschema
import pytest
from command_line import call, refused
from test_measurement_journal import MANIFEST
from test_report_ticket import culprit

from bisect_recompute.measurement.journal import new_journal
from bisect_recompute.report.files import write_files
from bisect_recompute.verdict.decide import decide


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def finished(tmp_path):
    f = culprit("fix @you <b>`x`</b>")
    with new_journal(tmp_path / "run", MANIFEST) as journal:
        for probe in f.probes_run:
            journal.append(probe)
        write_files(tmp_path / "run", f, decide(f))
    return tmp_path / "run"


def test_schemas_describe_what_they_name(finished, cache, tmp_path):
    verdict = json.loads(call("schema", "verdict", cwd=tmp_path, cache=cache).stdout)
    jsonschema.Draft202012Validator.check_schema(verdict)
    jsonschema.validate(json.loads((finished / "verdict.json").read_text()), verdict)
    recipe = json.loads(call("schema", "recipe", cwd=tmp_path, cache=cache).stdout)
    assert recipe["properties"].keys() >= {"model", "parallel", "training", "hardware", "thresholds"}
    assert "'cake' is not one of 'recipe', 'scan', 'verdict'" in refused("schema", "cake", cwd=tmp_path, cache=cache)


def test_ticket_is_rewritten_in_each_format(finished, cache, tmp_path):
    before = (finished / "ticket.md").read_text()
    (finished / "ticket.md").unlink()
    done = call("ticket", "run", cwd=tmp_path, cache=cache)
    assert (done.returncode, done.stdout) == (0, "run/ticket.md\n")
    assert (finished / "ticket.md").read_text() == before
    done = call("ticket", "run", "--format", "jira", "--json", cwd=tmp_path, cache=cache)
    assert json.loads(done.stdout) == {"format": "jira", "file": "run/ticket.jira"}
    assert call("ticket", "run", "--format", "text", cwd=tmp_path, cache=cache).stdout == "run/ticket.txt\n"


def test_ticket_of_a_run_that_is_not_there_or_not_finished(finished, cache, tmp_path):
    (finished / "verdict.json").unlink()
    assert refused("ticket", "run", cwd=tmp_path, cache=cache) == (
        "the run in run is not finished; go on with it: bisect-recompute resume run"
    )
    assert refused("ticket", "nothing", cwd=tmp_path, cache=cache) == "no run in nothing: it has no manifest.json"


def test_doctor_says_what_is_missing_and_the_fix(cache, tmp_path):
    done = call("doctor", "--json", cwd=tmp_path, cache=cache)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks.keys() >= {"python", "git", "torch", "megatron-core", "transformer-engine", "cache", "disk"}
    assert (done.returncode == 0) == all(check["works"] for check in checks.values())
    assert (checks["cache"]["works"], checks["cache"]["found"]) == (True, str(cache))
    (tmp_path / "file").write_text("")
    done = call("doctor", cwd=tmp_path, cache=tmp_path / "file")
    assert done.returncode == 1
    assert f"missing  cache                {tmp_path}/file: File exists" in done.stdout
    assert "fix: set BISECT_RECOMPUTE_CACHE" in done.stdout


def test_no_command_shows_the_commands(cache, tmp_path):
    done = call(cwd=tmp_path, cache=cache)
    assert done.returncode == 2 and "Commands:" in done.stderr and "run" in done.stderr
    assert refused("rum", cwd=tmp_path, cache=cache).startswith("No such command 'rum'.")
