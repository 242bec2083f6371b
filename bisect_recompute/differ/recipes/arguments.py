"""Defaults of a command line, read from the source of its argparse parser."""

from __future__ import annotations

import ast
from typing import Optional


def parser_defaults(content: Optional[bytes]) -> dict[str, str]:
    """Argument -> its default as source, "?" where that is no literal; "" -> what ``parse_cli_args`` returns."""
    try:
        tree = ast.parse(content or b"")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {"": "parser"}
    found = {"": "parser"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("parse_known_args", "parse_args"):
                found[""] = node.func.attr
            elif node.func.attr == "add_argument":
                name, default = _default_of(node)
                if name:
                    found[name] = default
    return found


def _default_of(node: ast.Call) -> tuple[str, str]:
    """(name, default) of an ``add_argument`` call."""
    flags = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    words = {k.arg: k.value for k in node.keywords}
    if not flags:
        return "", ""
    name = next((f for f in flags if f.startswith("--")), flags[0]).lstrip("-").replace("-", "_")
    if isinstance(words.get("dest"), ast.Constant):
        name = str(words["dest"].value)
    if "default" in words:
        try:
            return name, repr(ast.literal_eval(words["default"]))
        except (ValueError, RecursionError):
            return name, "?"
    action = getattr(words.get("action"), "value", None)
    return name, repr({"store_true": False, "store_false": True}.get(action) if isinstance(action, str) else None)
