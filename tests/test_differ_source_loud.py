"""Commits that change what recompute does, one kind each."""

from source_change import BLOCK, CONFIG, changes_between, details


def test_a_changed_field_default(repo):
    before = (
        "class ModelParallelConfig:\n    a: int = 1\n    cpu_offloading_weights: bool = True\n    '''Weights too.'''\n"
    )
    changes = changes_between(repo, {CONFIG: before}, {CONFIG: before.replace("True", "False")})
    assert changes.kinds == ("default",)
    (setting,) = changes.changes
    assert (setting.field, setting.old, setting.new, setting.file, setting.line) == (
        "cpu_offloading_weights",
        True,
        False,
        CONFIG,
        3,
    )
    assert "cpu_offloading_weights now defaults to False (was True)" in changes.source[0].detail


def test_defaults_behind_field_and_factory(repo):
    before = """
        class C:
            offload_modules: list = field(default_factory=list)
            recompute_num_layers: int = field(default=1, metadata={})
        """
    after = """
        class C:
            offload_modules: list = field(default_factory=lambda: ['core_attn'])
            recompute_num_layers: int = field(default=2)
        """
    changes = changes_between(repo, {CONFIG: before}, {CONFIG: after})
    assert {(c.field, str(c.old), str(c.new)) for c in changes.changes} == {
        ("offload_modules", "[]", "['core_attn']"),
        ("recompute_num_layers", "1", "2"),
    }


def test_none_for_false_is_no_change_but_none_for_an_empty_list_is(repo):
    before = "class C:\n    distribute_saved_activations: bool = None\n    recompute_modules: list = None\n"
    after = "class C:\n    distribute_saved_activations: bool = False\n    recompute_modules: list = []\n"
    changes = changes_between(repo, {CONFIG: before}, {CONFIG: after})
    assert [c.field for c in changes.changes] == ["recompute_modules"]


def test_a_changed_command_line_default_and_choices(repo):
    before = """
        def add(parser):
            group = parser.add_argument_group('training')
            group.add_argument('--recompute-num-layers', type=int, default=1, help='Layers.')
            group.add_argument('--recompute-method', choices=['uniform'])
        """
    after = """
        def add(parser):
            group = parser.add_argument_group('training')
            group.add_argument('--recompute-num-layers', type=int, help='Layers in a unit.')
            group.add_argument('--recompute-method', choices=['uniform', 'block'])
        """
    changes = changes_between(repo, {"megatron/arguments.py": before}, {"megatron/arguments.py": after})
    assert changes.kinds == ("default", "validation")
    assert [(c.field, c.old, c.new) for c in changes.changes] == [("recompute_num_layers", 1, None)]
    assert details(changes, "validation") == ["--recompute-method now accepts ['uniform', 'block'] (was ['uniform'])"]


VALIDATOR = """
    class TransformerConfig:
        def __post_init__(self):
            if self.recompute_modules is None:
                self.recompute_modules = ["core_attn"]
            if self.recompute_granularity == "selective":
                allowed_modules = {"core_attn", "mlp"}
                invalid_modules = set(self.recompute_modules) - allowed_modules
                assert not invalid_modules, f"{invalid_modules}"
            if self.fp8:
                if "moe_act" in self.recompute_modules or "layernorm" in self.recompute_modules:
                    raise ValueError("no")
    """


def test_a_new_label(repo):
    changes = changes_between(repo, {CONFIG: VALIDATOR}, {CONFIG: VALIDATOR.replace('"mlp"}', '"mlp", "moe"}')})
    assert details(changes, "validation") == ["recompute_modules now accepts moe"]


def test_what_fails_and_what_passes_now(repo):
    after = VALIDATOR.replace(' or "layernorm" in self.recompute_modules', "").replace(
        "if self.fp8:", "if self.fp8 and self.fp8_recipe == 'delayed':"
    )
    changes = changes_between(repo, {CONFIG: VALIDATOR}, {CONFIG: after})
    assert set(details(changes, "validation")) == {
        "no longer fails when 'layernorm' in recompute_modules and fp8",
        "no longer fails when 'moe_act' in recompute_modules and fp8",
        "now fails when 'moe_act' in recompute_modules and fp8 and fp8_recipe == 'delayed'",
    }


def test_a_raise_turned_into_an_assertion_is_the_same_check(repo):
    before = "def check(self):\n    if self.cpu_offloading and self.pp > 1:\n        raise ValueError('no')\n"
    after = "def check(self):\n    assert not (self.cpu_offloading and self.pp > 1), 'not with pipeline'\n"
    assert changes_between(repo, {CONFIG: before}, {CONFIG: after}).kinds == ("none",)


def test_reading_another_field_in_a_check_is_no_rename(repo):
    before = """
        def check(self):
            if self.distribute_saved_activations and self.sequence_parallel_enabled:
                raise ValueError('no')
        """
    changes = changes_between(repo, {CONFIG: before}, {CONFIG: before.replace("_parallel_enabled", "_parallel")})
    assert changes.kinds == ("validation",)


def test_a_fill_in_the_validator_is_a_default(repo):
    changes = changes_between(repo, {CONFIG: VALIDATOR}, {CONFIG: VALIDATOR.replace('= ["core_attn"]', "= []")})
    assert changes.kinds == ("default",)
    assert changes.source[0].line == 5


SITE = """
    class Layer:
        def forward(self, x, mask):
            if self.recompute_mlp:
                if self.config.fp8:
                    out = te_checkpoint(self.mlp, False, get_cuda_rng_tracker, self.tp_group, x)
                else:
                    out = tensor_parallel.checkpoint(self.mlp, False, x)
            else:
                out = self.mlp(x)
            return out
    """


def test_a_site_made_conditional(repo):
    changes = changes_between(
        repo,
        {BLOCK: SITE},
        {BLOCK: SITE.replace("if self.recompute_mlp:", "if self.recompute_mlp and not self.captured:")},
    )
    assert changes.kinds == ("checkpoint-site",)
    assert [(c.symbol, c.line) for c in changes.source] == [("Layer.forward", 6), ("Layer.forward", 8)]
    assert all("now only when not captured" in c.detail for c in changes.source)


def test_a_site_that_reaches_more_runs_without_a_recompute_word_on_the_line(repo):
    changes = changes_between(
        repo, {BLOCK: SITE}, {BLOCK: SITE.replace("if self.config.fp8:", "if self.config.fp8 or self.config.fp4:")}
    )
    assert [c.detail for c in changes.source] == [
        "te_checkpoint(mlp): now when fp4 or fp8 (was: fp8)",
        "tensor_parallel.checkpoint(mlp): now only when not fp4",
    ]


def test_a_site_added_and_removed(repo):
    without = SITE.replace("tensor_parallel.checkpoint(self.mlp, False, x)", "self.mlp(x)")
    assert (
        "new tensor_parallel.checkpoint(mlp)" in changes_between(repo, {BLOCK: without}, {BLOCK: SITE}).source[0].detail
    )
    removed = changes_between(repo, {BLOCK: SITE}, {BLOCK: without}).source[0]
    assert removed.kind == "checkpoint-site" and "is gone" in removed.detail and removed.line == 8


def test_a_site_behind_a_new_early_exit(repo):
    before = "def checkpoint(function, *args):\n    return CheckpointFunction.apply(function, *args)\n"
    exit_early = "    if is_graph_capturing():\n        return function(*args)\n"
    after = before.replace("    return CheckpointFunction", exit_early + "    return CheckpointFunction")
    (change,) = changes_between(
        repo, {"megatron/core/tensor_parallel/random.py": before}, {"megatron/core/tensor_parallel/random.py": after}
    ).source
    assert (change.kind, change.symbol, change.line) == ("checkpoint-site", "checkpoint", 4)
    assert "now only when not is_graph_capturing()" in change.detail


def test_what_crosses_the_boundary(repo):
    changes = changes_between(repo, {BLOCK: SITE}, {BLOCK: SITE.replace("False, x)", "False, x, mask)")})
    assert (
        changes.source[0].detail == "tensor_parallel.checkpoint(mlp): what crosses the boundary changes: now with mask"
    )


def test_the_process_group_of_a_site_is_no_matter(repo):
    assert changes_between(
        repo, {BLOCK: SITE}, {BLOCK: SITE.replace("self.tp_group", "self.pg_collection.tp")}
    ).kinds == ("none",)


def test_recomputes_own_code(repo):
    path = "megatron/core/tensor_parallel/random.py"
    before = """
        class CheckpointWithoutOutput:
            def _recompute(self, _):
                outputs = self.run(*self.inputs)
                for output, again in zip(self.outputs, outputs):
                    output.untyped_storage().copy_(again.untyped_storage())
        """
    after = before.replace("output.untyped_storage().copy_(again.untyped_storage())", "share_storage(output, again)")
    (change,) = changes_between(repo, {path: before}, {path: after}).source
    assert (change.kind, change.symbol, change.line) == ("checkpoint-site", "CheckpointWithoutOutput._recompute", 6)
    renamed = before.replace("again", "output_again")
    assert changes_between(repo, {path: before}, {path: renamed}).kinds == ("none",)


def test_code_that_only_a_comment_ties_to_recompute(repo):
    before = """
        class Wrapper:
            def post_forward(self, module):
                if module.state == State.PRE_BACKWARD:
                    # The backward pass follows: this runs during activation recomputation.
                    return
                self.release(module)
        """
    after = before.replace("return\n", "lazy = True\n").replace("self.release(module)", "self.release(module, lazy)")
    changes = changes_between(repo, {BLOCK: before}, {BLOCK: after})
    assert changes.kinds == ("checkpoint-site",)
    elsewhere = before.replace("self.release(module)", "self.release(module, False)")
    assert changes_between(repo, {BLOCK: before}, {BLOCK: elsewhere}).kinds == ("none",)


def test_a_call_under_a_recompute_condition_is_plumbing(repo):
    before = "def step(self, m):\n    self.prefetch(m)\n"
    after = "def step(self, m):\n    if not self.is_recomputing:\n        self.prefetch(m)\n"
    assert changes_between(repo, {BLOCK: before}, {BLOCK: after}).kinds == ("plumbing",)


def test_a_class_that_goes_with_its_sites(repo):
    other = {"megatron/core/other.py": "import torch\n"}
    (change,) = changes_between(repo, {BLOCK: SITE, **other}, other).source
    assert (change.kind, change.symbol) == ("checkpoint-site", "Layer")
    assert "removed with its 2 checkpoint sites" in change.detail


def test_a_new_field_is_plumbing_unless_it_is_on(repo):
    before = "class C:\n    a: int = 1\n    cpu_offloading: bool = False\n"
    off = changes_between(
        repo, {CONFIG: before}, {CONFIG: before + "    cpu_offloading_double_buffering: bool = False\n"}
    )
    assert off.kinds == ("plumbing",)
    on = changes_between(
        repo, {CONFIG: before}, {CONFIG: before + "    cpu_offloading_double_buffering: bool = True\n"}
    )
    assert on.kinds == ("default",)


def test_a_call_that_moves_into_the_checkpointed_function(repo):
    before = """
        class MoELayer:
            def forward(self, x):
                def custom_forward(x):
                    return self.experts(x)

                shared = self.shared_experts(x)
                if self.moe_layer_recompute:
                    out = tensor_parallel.checkpoint(custom_forward, False, x)
                else:
                    out = custom_forward(x)
                return out + shared
        """
    after = (
        before.replace("return self.experts(x)", "return self.experts(x) + self.shared_experts(x)")
        .replace("                shared = self.shared_experts(x)\n", "")
        .replace("return out + shared", "return out")
    )
    (change,) = changes_between(repo, {BLOCK: before}, {BLOCK: after}).source
    assert change.detail == "tensor_parallel.checkpoint(custom_forward): now also recomputes shared_experts"
    (back,) = changes_between(repo, {BLOCK: after}, {BLOCK: before}).source
    assert "no longer recomputes shared_experts" in back.detail
    other = before.replace("self.experts(x)", "self.experts(self.route(x))")
    assert changes_between(repo, {BLOCK: before}, {BLOCK: other}).kinds == ("none",)
