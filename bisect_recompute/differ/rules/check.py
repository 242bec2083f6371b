"""All findings about one recipe at one revision."""

from __future__ import annotations

import difflib
import re
from typing import Iterator, Mapping, Optional

from bisect_recompute.differ.rules.conflicts import conflicts
from bisect_recompute.differ.rules.inert import RULES, Finding
from bisect_recompute.differ.rules.literals import holds
from bisect_recompute.differ.rules.settings import Setting, Settings
from bisect_recompute.differ.rules.validator import Check, Validator
from bisect_recompute.differ.source.conditions import shown
from bisect_recompute.differ.source.words import SETTINGS, is_word

__all__ = ["Finding", "check"]

_ORDER = ("fails", "conflict", "inert", "note")
_LABELLED = ("recompute_modules", "offload_modules")


def check(fields: Mapping[str, Setting], validator: Optional[Validator], complete: bool = False) -> list[Finding]:
    """Worst first. ``validator``: of the revision, None where it is not at hand; ``complete``: see Settings."""
    settings = Settings(fields, validator, complete)
    found = [*_unknown_fields(settings), *_labels(settings), *_refused(settings)]
    for finding in conflicts(settings):
        # The revision's own check says it with file and line; without one it runs, and not as meant.
        if not any(set(finding.fields) <= set(f.fields) for f in found):
            found.append(finding)
    for rule in RULES:
        found += [
            f for f in rule(settings) if not any(o.kind == "fails" and set(f.fields) <= set(o.fields) for o in found)
        ]
    return sorted(found, key=lambda f: (_ORDER.index(f.kind), f.rule, f.fields))


def _unknown_fields(s: Settings) -> Iterator[Finding]:
    for name in sorted(SETTINGS) if s.validator and s.validator.defaults else ():
        if s.stated(name) and s.get(name) and not s.validator.has(name):
            yield Finding(
                "fails",
                "unknown-field",
                (name,),
                f"{name} is no field of this revision's configuration",
                s.validator.name,
                f"drop {name}",
                *s.place(name),
            )


def _labels(s: Settings) -> Iterator[Finding]:
    for name in _LABELLED:
        accepted, stated = s.validator.labels.get(name) if s.validator else None, s.get(name)
        if accepted is None or not isinstance(stated, (list, tuple)):
            continue
        for label in stated:
            if label in accepted:
                continue
            near = difflib.get_close_matches(str(label), accepted, n=1)
            fix = f"did you mean '{near[0]}'?" if near else f"accepted are {', '.join(sorted(accepted))}"
            place = s.validator.places[name]
            used = (
                s.filled("recompute_granularity", place) == "selective"
                if name == "recompute_modules"
                else s.get("fine_grained_activation_offloading") is True
            )
            yield Finding(
                "fails" if used else "inert",
                "unknown-label",
                (name,),
                f"{name} does not accept {label!r}",
                f"{s.validator.name} {place[0]}:{place[1]}",
                fix,
                *s.place(name),
            )


def _refused(s: Settings) -> Iterator[Finding]:
    told = set()
    for refusal in s.validator.checks if s.validator else ():
        place = refusal.file, refusal.line
        if (
            refusal.condition
            and refusal.condition not in told
            and holds(refusal.condition, lambda name: s.look_up(name, place))
        ):
            told.add(refusal.condition)
            fields = _fields(refusal)
            yield Finding(
                "fails",
                "refused",
                fields,
                f"this revision refuses: {shown(refusal.condition)}",
                f"{s.validator.name} {refusal.file}:{refusal.line}",
                _fix(refusal),
                *s.place(*fields),
            )


def _fields(refusal: Check) -> tuple[str, ...]:
    """Fields that the condition reads, recompute and offload first."""
    words = {
        w
        for clause in refusal.condition
        for literal in clause
        for w in re.findall(r"(?<!['\"\w])[a-z_]\w*(?!['\"\w(])", literal)
    }
    names = [w for w in words if w not in ("not", "in", "is", "or", "and", "None", "len", "set", "model_cfg")]
    return tuple(sorted(names, key=lambda n: (not is_word(n), n)))


def _fix(refusal: Check) -> str:
    """How to make one part of the condition false: of those about recompute or offload, the simplest."""
    literals = [next(iter(clause)) for clause in refusal.condition if len(clause) == 1]
    ways = [way for literal in sorted(literals) for way in [_way_out(literal)] if way]
    return ", or ".join(ways[:2]) or "change one of these settings"


def _way_out(literal: str) -> Optional[str]:
    bare = re.sub(r"\b\w+\.(?=\w+\b)", "", literal) if not re.search(r"\.[A-Za-z]+ (?:not )?in ", literal) else literal
    for pattern, way in (
        (r"^'(\w+)' in \(?(\w+)", "take {0} out of {1}"),
        (r"^(\w+) is not None$", "leave {0} unset"),
        (r"^(\w+) is None$", "set {0}"),
        (r"^(\w+) == '(\w+)'$", "set {0} to something other than '{1}'"),
        (r"^(\w+)$", "turn {0} off"),
        (r"^(\w+) > (\d+)$", "set {0} to {1}"),
    ):
        match = re.match(pattern, bare)
        if match and (
            is_word(literal) or any(map(is_word, match.groups())) or "parallel" in literal or "cuda_graph" in literal
        ):
            return way.format(*match.groups())
    return None
