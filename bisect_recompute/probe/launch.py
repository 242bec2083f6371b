"""Reads a Megatron-LM launch command line: the training script, its arguments, the environment and the number of GPUs."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from bisect_recompute.errors import UsageError

# What a step does not depend on: where data, tokenizers, checkpoints and logs lie. Dropped with their values. The norm of
# the parameters and the zeros among gradients are computed on the GPU, before memory is logged.
ELSEWHERE = re.compile(
    r"--(save|load|.*-save|.*-load|.*data-path|data-args-path|data-cache-path|vocab-file|merge-file|tokenizer-model|tensorboard-.*|"
    r"wandb-.*|one-logger-.*|log-(?!params-norm$|num-zeros-in-grad$).*|profile.*|exit-.*|save-.*|ckpt-.*|"
    r"pretrained-checkpoint|non-persistent-.*|async-save|"
    r"use-persistent-ckpt-worker|split|num-workers|timing-log-.*|dist-ckpt-.*|auto-detect-ckpt-format|verify-integrity|"
    r"use-checkpoint-args|finetune|no-load-.*|no-save-.*|use-dist-ckpt|result-rejected-tracker-filename)$"
)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_LAUNCHER = {"nproc": re.compile(r"--nproc[-_]per[-_]node"), "nodes": re.compile(r"--nnodes")}


@dataclass(frozen=True)
class Launch:
    """One training command."""

    script: str
    """Path in the repository; empty when the command names none."""
    arguments: tuple[str, ...]
    """What the script is called with, those in ``ELSEWHERE`` left out."""
    environment: dict[str, str]
    world_size: int | None
    """Number of GPUs, from torchrun's options; None when the command does not say."""

    def value(self, option: str, default: str = "") -> str:
        """The last value given for an option, as the argument parser would take it."""
        found = default
        for index, token in enumerate(self.arguments):
            name, equals, value = token.partition("=")
            if name == option:
                following = self.arguments[index + 1] if index + 1 < len(self.arguments) else ""
                found = value if equals else following
        return found

    def has(self, option: str) -> bool:
        return any(token.partition("=")[0] == option for token in self.arguments)


def read_launch(text: str) -> Launch:
    """Raises UsageError when the text is no command line or an argument depends on a shell variable that it does not set."""
    try:
        words = shlex.split(re.sub(r"\\\s*\n", " ", text), comments=True)
    except ValueError as error:
        raise UsageError(f"megatron_args is no command line: {error}") from None
    environment = {}
    while words and _ASSIGNMENT.fullmatch(words[0]):
        name, value = _ASSIGNMENT.fullmatch(words.pop(0)).groups()
        environment[name] = value
    script = next((i for i, word in enumerate(words) if word.endswith(".py")), -1)
    launcher, arguments = words[:script] if script >= 0 else [], words[script + 1:]
    if not arguments or not arguments[0].startswith("--"):
        raise UsageError("megatron_args needs the arguments of Megatron-LM's training script, like '--num-layers 24 ...'")
    arguments = [_filled(token, environment) for token in _without(arguments)]
    nodes, per_node = _number(launcher, "nodes"), _number(launcher, "nproc")
    return Launch(
        script=words[script] if script >= 0 else "", arguments=tuple(arguments), environment=environment,
        world_size=per_node * (nodes or 1) if per_node else None,
    )


def _without(arguments: list[str]) -> list[str]:
    kept, dropping = [], False
    for token in arguments:
        if token.startswith("--"):
            dropping = bool(ELSEWHERE.match(token.partition("=")[0]))
        if not dropping:
            kept.append(token)
    return kept


def _filled(token: str, environment: dict[str, str]) -> str:
    def value(match):
        if match[1] not in environment:
            raise UsageError(f"megatron_args: the shell variable {match[1]} is not set in the command; write its value")
        return environment[match[1]]

    return _VARIABLE.sub(value, token)


def _number(launcher: list[str], which: str) -> int | None:
    for index, token in enumerate(launcher):
        name, equals, value = token.partition("=")
        if _LAUNCHER[which].fullmatch(name):
            value = value if equals else (launcher[index + 1] if index + 1 < len(launcher) else "")
            return int(value) if value.isdigit() else None
    return None
