"""The wheel carries what the tool needs outside a checkout, and the base install stays light."""

import email
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_wheel_carries_recipes_and_demo_history(wheel):
    shipped = wheel / "bisect_recompute" / "shipped"
    for folder, files in (("recipes", "*.yaml"), ("recipes/models", "*.yaml"), ("fixtures/demo", "*")):
        here = {path.name: path.read_bytes() for path in (ROOT / folder).glob(files)}
        assert here and here == {path.name: path.read_bytes() for path in (shipped / folder).iterdir() if path.is_file()}


def test_recipes_and_demo_are_found_from_the_wheel_alone(wheel, tmp_path):
    script = (
        "import bisect_recompute, bisect_recompute.probe.recipe as r, bisect_recompute.cli.demo as d;"
        "git_dir = d.unpack(d.demo_folder() / 'history.fast-export');"
        "print(bisect_recompute.__file__, git_dir, r.load_recipe('tiny').model.num_layers, *r.shipped_recipes())"
    )
    environment = {**os.environ, "PYTHONPATH": str(wheel), "BISECT_RECOMPUTE_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    module, git_dir, layers, *names = done.stdout.split()
    assert Path(module).is_relative_to(wheel)
    assert layers == "4" and names == sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))
    count = subprocess.run(["git", "-C", git_dir, "rev-list", "--count", "--all"], capture_output=True, text=True)
    assert count.stdout.strip() == "49"


def test_base_install_needs_no_torch(wheel):
    metadata = email.message_from_string(next(wheel.glob("*.dist-info/METADATA")).read_text())
    requires = metadata.get_all("Requires-Dist")
    base = {re.match(r"[\w-]+", line)[0].lower() for line in requires if "extra ==" not in line}
    assert base.isdisjoint({"torch", "numpy", "megatron-core", "transformer-engine"}) and "click" in base
    assert any(line.startswith("torch==2.13.0") and "simulate" in line for line in requires)
    assert metadata["License-Expression"] == "Apache-2.0" and list(wheel.glob("*.dist-info/licenses/LICENSE"))


def test_ci_runs_the_test_command_of_the_readme():
    command = (ROOT / ".ci" / "run").read_text().strip().splitlines()[-1]
    assert "pytest" in command and command in (ROOT / "README.md").read_text().splitlines()
