"""The folders form a line; each imports only those before it (bisect_recompute/__init__.py)."""

import ast
from pathlib import Path

import bisect_recompute

ORDER = ["errors", "history", "differ", "driver", "probe", "measurement", "verdict", "report", "cli"]
PACKAGE = Path(bisect_recompute.__file__).parent


def imported(source: str) -> set[str]:
    """First folder of every bisect_recompute import, also of those inside functions."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("bisect_recompute.")}


def test_every_folder_is_in_the_order():
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert folders == set(ORDER) - {"errors"}


def test_folders_import_only_those_before_them():
    wrong = []
    for rank, folder in enumerate(ORDER):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            later = imported(path.read_text(encoding="utf-8")) - set(ORDER[: rank + 1])
            wrong += [f"{path.relative_to(PACKAGE)} imports {name}" for name in sorted(later)]
    assert not wrong


def test_the_check_sees_nested_imports():
    assert imported("def f():\n    from bisect_recompute.cli import main\n") == {"cli"}
    assert imported("import bisect_recompute.report.text as t\nimport os\n") == {"report"}
