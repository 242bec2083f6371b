"""Settings in files that start a training: options in shell scripts and functional tests, overrides, YAML configurations."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Callable, Iterator, Mapping, Optional, Sequence

import yaml

from bisect_recompute.differ.recipes import fields as names
from bisect_recompute.differ.recipes.changes import NOTHING, RecipeChanges
from bisect_recompute.differ.recipes.fields import UNSET, FieldState
from bisect_recompute.differ.recipes.recipes import Cell, RecipeState
from bisect_recompute.differ.recipes.shell import UNKNOWN, Word, commands, split
from bisect_recompute.differ.source.change import SettingChange
from bisect_recompute.history.commit import ChangedPath

_FUNCTIONAL_TEST = re.compile(r"tests/functional_tests/test_cases/.*/model_config\.ya?ml$")
_CONFIGURATION = re.compile(r"examples/.*/conf/.*\.ya?ml$")
_LINE = re.compile(r"\s(--\w|(model|train)\.\w+=)")
_LARGEST = 2**20
_OPTIONS = {name.replace("_", "-"): name for name in (*names.MODEL, *names.OVERLAP, *names.TRAIN)}
_PART = "part of it is set outside the script"
_SWITCHES = {
    "recompute-activations": ("recompute_granularity", "selective"), "bf16": (names.PRECISION, "bf16"),
    "fp16": (names.PRECISION, "fp16"),
    **{name.replace("_", "-"): (name, True) for name in (
        "distribute_saved_activations", "fine_grained_activation_offloading", "sequence_parallel", "moe_shared_expert_overlap",
        "enable_cuda_graph", "cpu_offloading", *names.OVERLAP,
    )},
}
"""Options without a value."""
_LISTS = frozenset(("recompute_modules", "offload_modules", "cuda_graph_scope", "cuda_graph_modules"))
_OVERRIDE = re.compile(r"(?:\+\+?)?(?:cfg\.)?(?P<section>model|train|dataset|comm_overlap)\.(?P<field>\w+)=(?P<value>.*)", re.S)

Settings = Mapping[str, FieldState]


def is_script(path: str) -> bool:
    return path.endswith(".sh") or _FUNCTIONAL_TEST.search(path) is not None or _CONFIGURATION.search(path) is not None


def script_settings(path: str, content: Optional[bytes]) -> Optional[Settings]:
    """The fields that the file sets; None where it sets none, and is no configuration of a training."""
    if not content or len(content) > _LARGEST:
        return None
    if path.endswith(".sh"):
        found = _where_written(content, _of_commands(path, commands(content)))
    else:
        found = _of_yaml(path, content)
    return {name: found.get(name, UNSET) for name in names.ALL} if found else None


def _where_written(content: bytes, found: dict[str, FieldState]) -> dict[str, FieldState]:
    """An option that reaches its command through a variable is looked up where the script writes it."""
    lines = content.decode("utf-8", "replace").split("\n")
    out = {}
    for name, state in found.items():
        path, _, line = state.origin
        spelled = [re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])") for word in (f"--{name.replace('_', '-')}", name)]
        if not any(pattern.search(lines[line - 1]) for pattern in spelled if 0 < line <= len(lines)):
            places = [n for n, text in enumerate(lines, 1) if any(p.search(text.partition("#")[0]) for p in spelled)]
            if len(places) == 1:
                state = replace(state, origin=(path, None, places[0]))
        out[name] = state
    return out


def _of_commands(path: str, all_commands: Sequence[Sequence[Word]]) -> dict[str, FieldState]:
    found: dict[str, FieldState] = {}
    for words in all_commands:
        # A command line in one word is what a shell or srun is told to run.
        words = [part for word in words for part in (split(word) if _LINE.search(word.text) else [word])]
        for name, state in _options(path, words):
            before = found.get(name)
            if before is not None and not before.same_value(state):
                state = FieldState("unknown", reason="the script gives it more than once, and differently", origin=state.origin)
            found[name] = state
    return found


def _options(path: str, words: Sequence[Word]) -> Iterator[tuple[str, FieldState]]:
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        text = word.text
        override = _OVERRIDE.fullmatch(text)
        if override and override["field"] in (*_OPTIONS.values(), *_LISTS):
            yield override["field"], _state(path, word, _yaml_value(override["value"]))
            continue
        if not text.startswith("--"):
            continue
        option, equals, value = text[2:].partition("=")
        if option in _SWITCHES and not equals:
            name, value = _SWITCHES[option]
            yield name, _state(path, word, value)
        elif option in _OPTIONS or option == "fp8-format":
            name = _OPTIONS.get(option, names.PRECISION)
            values = [Word(value, word.line, word.reason)] if equals else []
            while not equals and index < len(words) and not words[index].text.startswith("--"):
                values.append(words[index])
                index += 1
                if name not in _LISTS:
                    break
            yield name, _given(path, name, word, values)


def _given(path: str, name: str, option: Word, values: Sequence[Word]) -> FieldState:
    reason = next((v.reason or _PART for v in values if UNKNOWN in v.text or v.reason), option.reason)
    if reason or not values:
        return FieldState("unknown", reason=reason or "the option has no value", origin=(path, None, option.line))
    plain = [_yaml_value(v.text) for v in values]
    if name in _LISTS:
        plain = [item for value in plain for item in (value if isinstance(value, list) else [value])]
    if name == names.PRECISION:
        return FieldState("set", f"fp8:{plain[0]}", origin=(path, None, option.line))
    return FieldState("set", plain if name in _LISTS else plain[0], origin=(path, None, option.line))


def _state(path: str, word: Word, value) -> FieldState:
    origin = (path, None, word.line)
    if word.reason or UNKNOWN in str(value):
        return FieldState("unknown", reason=word.reason or _PART, origin=origin)
    return FieldState("set", value, origin=origin)


def _yaml_value(text: str):
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def _of_yaml(path: str, content: bytes) -> dict[str, FieldState]:
    try:
        root = yaml.compose(content, yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    sections = _mapping(root)
    if "MODEL_ARGS" in sections:
        words: list[Word] = []
        for key, (line, value) in _mapping(sections["MODEL_ARGS"][1]).items():
            words.append(Word(key, line))
            words += [Word(part, line) for part in _texts(value)]
        return _of_commands(path, [words])
    found = {}
    for section in ("model", "train", "dataset", "comm_overlap"):
        for key, (line, value) in _mapping(sections.get(section, (0, None))[1]).items():
            if key in names.ALL:
                found[key] = _state(path, Word("", line), yaml.safe_load(yaml.serialize(value)))
    return found


def _mapping(node) -> dict[str, tuple[int, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {key.value: (key.start_mark.line + 1, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def _texts(node) -> list[str]:
    """What an option is given: true is nothing, a list or words are several."""
    if isinstance(node, yaml.SequenceNode):
        return [item.value for item in node.value if isinstance(item, yaml.ScalarNode)]
    if not isinstance(node, yaml.ScalarNode) or node.value.lower() == "true":
        return []
    # A list in brackets, quoted: its items are words.
    return node.value.strip("[]").replace(",", " ").split()


def script_changes(read_blob: Callable[[str], Optional[bytes]], changed: Sequence[ChangedPath]) -> RecipeChanges:
    """What one commit does to scripts. One that vanishes while another with the same settings comes has moved."""
    paths = [c for c in changed if is_script(c.path)]
    if not paths:
        return NOTHING
    old, new = (_settings_of(read_blob, {c.path: getattr(c, side) for c in paths}) for side in ("old_blob", "new_blob"))
    changes, effective, states = [], [], []
    for path in sorted(old.keys() & new.keys()):
        matters = names.effective_changes(old[path], new[path])
        if matters:
            states.append((path, names.describe_state(old[path]), names.describe_state(new[path])))
        for name in names.ALL:
            before, after = old[path][name], new[path][name]
            if not before.same_value(after) and "unknown" not in (before.state, after.state):
                line = (after.origin or before.origin)[2]
                changes.append(SettingChange(path, name, before.shown(), after.shown(), path, line))
                effective.append(name in matters)
    gone, come, moved = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys()), []
    for path in gone:
        match = next((other for other in come if _alike(old[path], new[other])), None)
        if match:
            moved.append((path, match))
            come.remove(match)
    removed = tuple(path for path in gone if path not in dict(moved))
    kinds = [kind for kind, there in (("recipe-value", any(effective)), ("recipe-added", come), ("recipe-removed", removed),
                                      ("recipe-moved", moved)) if there]
    return RecipeChanges(tuple(kinds), tuple(changes), tuple(effective), tuple(states), tuple(moved), tuple(come), removed)


def _settings_of(read_blob: Callable[[str], Optional[bytes]], blobs: Mapping[str, Optional[str]]) -> dict[str, Settings]:
    found = {path: script_settings(path, read_blob(blob)) for path, blob in blobs.items() if blob}
    return {path: settings for path, settings in found.items() if settings is not None}


def scripts_at(read_blob: Callable[[str], Optional[bytes]], tree: Mapping[str, str]) -> dict[str, RecipeState]:
    """The scripts of a revision, by their path."""
    found = _settings_of(read_blob, {path: blob for path, blob in tree.items() if is_script(path)})
    return {path: RecipeState(Cell(path, path, ""), dict(settings)) for path, settings in found.items()}


def _alike(old: Settings, new: Settings) -> bool:
    return all(old[name].same_value(new[name]) for name in names.ALL)
