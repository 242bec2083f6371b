"""Commits that hold recompute words on changed lines and change nothing."""

import textwrap

import pytest
from source_change import BLOCK, CONFIG, changes_between

FORWARD = textwrap.dedent('''
    class Block(Module):
        """Runs layers."""

        def __init__(self, config):
            self.config = config
            self.recompute_norm = (
                self.config.recompute_granularity == 'selective' and "layernorm" in self.config.recompute_modules
            )

        def forward(self, hidden_states, attention_mask, inference_context=None):
            # Checkpoint the whole layer.
            if self.config.recompute_granularity == 'full' and self.training:
                for l in range(self.num_layers):
                    hidden_states = tensor_parallel.checkpoint(
                        self.layers[l], self.config.distribute_saved_activations, hidden_states, attention_mask
                    )
            else:
                hidden_states = self.layers(hidden_states, attention_mask)
            if self.recompute_norm:
                self.norm_checkpoint = tensor_parallel.CheckpointWithoutOutput()
                hidden_states = self.norm_checkpoint.checkpoint(self.norm, hidden_states)
            return hidden_states
    ''').lstrip()


def edited(*pairs: tuple[str, str]) -> str:
    text = FORWARD
    for old, new in pairs:
        old, new = old.replace("\n    ", "\n"), new.replace("\n    ", "\n")
        old, new = (t[4:] if t.startswith("        ") else t for t in (old, new))
        assert old in text, old
        text = text.replace(old, new)
    return text


QUIET = {
    "formatting": edited(
        (
            "self.config.recompute_granularity == 'full' and self.training",
            '(\n                    self.config.recompute_granularity\n                    == "full"\n'
            "                    and self.training\n                )",
        ),
        (
            "self.layers[l], self.config.distribute_saved_activations, hidden_states, attention_mask\n",
            "self.layers[l],\n                        self.config.distribute_saved_activations,\n"
            "                        hidden_states,\n                        attention_mask,\n",
        ),
    ),
    "comments and docstrings": edited(
        ("# Checkpoint the whole layer.", "# Full recompute: every layer is its own unit."),
        ("Runs layers.", "Runs layers, with activation recompute (recompute_granularity)."),
    ),
    "type annotations": edited(
        (
            "def forward(self, hidden_states, attention_mask, inference_context=None):",
            "def forward(self, hidden_states: Tensor, attention_mask: Tensor, inference_context: Any = None) -> Any:",
        ),
        ("def __init__(self, config):", "def __init__(self, config: TransformerConfig) -> None:"),
    ),
    "a local variable is renamed": edited(
        ("for l in range", "for layer_idx in range"), ("self.layers[l]", "self.layers[layer_idx]")
    ),
    "an attribute is renamed": edited(("recompute_norm", "recompute_input_norm")),
    "nesting and order of a condition": edited(
        (
            "if self.config.recompute_granularity == 'full' and self.training:\n                for l",
            "if self.training and not self.config.recompute_granularity != 'full':\n                for l",
        ),
    ),
    "a condition moves into a nested if": edited(
        (
            "            if self.recompute_norm:\n"
            "                self.norm_checkpoint = tensor_parallel.CheckpointWithoutOutput()\n"
            "                hidden_states = self.norm_checkpoint.checkpoint(self.norm, hidden_states)\n"
            "            return hidden_states",
            "            if not self.recompute_norm:\n                return hidden_states\n"
            "            self.norm_checkpoint = tensor_parallel.CheckpointWithoutOutput()\n"
            "            hidden_states = self.norm_checkpoint.checkpoint(self.norm, hidden_states)\n"
            "            return hidden_states",
        ),
    ),
    "another statement of the function": edited(
        (
            "            return hidden_states\n",
            "            hidden_states = self.final_norm(hidden_states)\n            return hidden_states\n",
        )
    ),
    "a log line": edited(
        (
            "            return hidden_states\n",
            "            log_single_rank(logger, 'recompute is ' + str(self.config.recompute_granularity))\n"
            "            return hidden_states\n",
        )
    ),
    "inference only": edited(
        (
            "            if self.recompute_norm:\n",
            "            if inference_context is not None:\n                return self.decode(hidden_states)\n"
            "            if self.recompute_norm:\n",
        )
    ),
    "the road to the configuration": edited(
        ("self.config.recompute_granularity == 'full'", "getattr(self.config, 'recompute_granularity') == 'full'")
    ),
}


@pytest.mark.parametrize("what", QUIET)
def test_an_edit_without_effect_yields_nothing(repo, what):
    assert QUIET[what] != FORWARD
    changes = changes_between(repo, {BLOCK: FORWARD}, {BLOCK: QUIET[what]})
    assert (changes.kinds, changes.source) == (("none",), ())


def test_the_same_edits_are_seen_once_they_have_an_effect(repo):
    changes = changes_between(repo, {BLOCK: FORWARD}, {BLOCK: edited(("'full'", "'selective'"))})
    assert changes.kinds == ("checkpoint-site",)


MOVES = {
    "a file is renamed": ({BLOCK: FORWARD}, {"megatron/core/models/common/block.py": FORWARD}),
    "a block goes to another file": (
        {BLOCK: FORWARD, "megatron/core/recompute.py": "import torch\n"},
        {BLOCK: "import torch\n", "megatron/core/recompute.py": "import torch\n\n\n" + FORWARD},
    ),
    "a class is renamed with its file": (
        {BLOCK: FORWARD},
        {"megatron/core/hybrid.py": edited(("class Block(", "class Stack("))},
    ),
    "a method is extracted": (
        {BLOCK: FORWARD},
        {
            BLOCK: edited(
                (
                    "            if self.recompute_norm:\n",
                    "            return self.norm_step(hidden_states)\n\n"
                    "        def norm_step(self, hidden_states):\n            if self.recompute_norm:\n",
                )
            )
        },
    ),
    "fields are reordered": (
        {CONFIG: "class C:\n    recompute_method: str = None\n    cpu_offloading: bool = False\n    a: int = 1\n"},
        {
            CONFIG: "class C:\n    cpu_offloading: bool = False\n    a: int = 1\n"
            "    recompute_method: Optional[str] = None\n"
        },
    ),
    "CRLF line ends": ({BLOCK: FORWARD}, {BLOCK: FORWARD.replace("\n", "\r\n")}),
}


@pytest.mark.parametrize("what", MOVES)
def test_a_move_yields_nothing(repo, what):
    changes = changes_between(repo, *MOVES[what])
    assert (changes.kinds, changes.source) == (("none",), ())


@pytest.mark.parametrize(
    "path",
    [
        "tests/unit_tests/test_recompute.py",
        "docs/example.py",
        "README.md",
        "examples/gpt3/train.py",
        "megatron/core/inference/engine.py",
        "megatron/training/theoretical_memory_usage.py",
        "src/megatron/bridge/recipes/llama/llama3.py",
    ],
)
def test_files_that_train_nothing_yield_nothing(repo, path):
    changes = changes_between(repo, {path: FORWARD}, {path: edited(("'full'", "'selective'"))})
    assert changes.kinds == ("none",)


def test_words_that_only_look_alike_yield_nothing(repo):
    before = {BLOCK: "def f(self):\n    return precompute(self.precomputed_freqs, optimizer_cpu_offload=self.a)\n"}
    after = {BLOCK: "def f(self):\n    return precompute(self.precomputed_cos, optimizer_cpu_offload=self.b)\n"}
    assert changes_between(repo, before, after).kinds == ("none",)


def test_a_new_class_with_sites_changes_nobodys_run(repo):
    assert changes_between(repo, {BLOCK: "import torch\n"}, {BLOCK: "import torch\n" + FORWARD}).kinds == ("none",)


def test_a_legacy_tree_that_goes_changes_nobodys_run(repo):
    path = "megatron/legacy/model/transformer.py"
    assert changes_between(repo, {path: FORWARD, "setup.py": ""}, {"setup.py": ""}).kinds == ("none",)
