"""Launch command lines of Megatron-LM."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_recompute.errors import UsageError
from bisect_recompute.probe.launch import read_launch
from bisect_recompute.probe.recipe import LaunchRecipe, parse_recipe

COMMAND = r"""
NVTE_FUSED_ATTN=0 HIDDEN=4096 torchrun --nproc-per-node 8 --nnodes=4 \
  pretrain_gpt.py --num-layers 32 --hidden-size ${HIDDEN} \
  --save /ckpt/a --load ${CKPT} --swiglu --lr=3e-4 \
  --data-path 0.5 /data/one 0.5 /data/two --bf16 # the usual
"""


def test_reads_script_arguments_environment_and_gpus():
    launch = read_launch(COMMAND)
    assert launch.script == "pretrain_gpt.py"
    assert launch.arguments == ("--num-layers", "32", "--hidden-size", "4096", "--swiglu", "--lr=3e-4", "--bf16")
    assert launch.environment == {"NVTE_FUSED_ATTN": "0", "HIDDEN": "4096"}
    assert launch.world_size == 32
    assert (launch.value("--lr"), launch.value("--num-layers"), launch.value("--seq-length", "1")) == ("3e-4", "32", "1")
    assert launch.has("--bf16") and not launch.has("--fp16")


def test_what_is_logged_is_left_out_unless_the_gpu_computes_it():
    launch = read_launch("--log-interval 1 --log-params-norm --log-throughput --log-num-zeros-in-grad --bf16")
    assert launch.arguments == ("--log-params-norm", "--log-num-zeros-in-grad", "--bf16")


def test_arguments_alone_are_enough_and_the_last_value_counts():
    launch = read_launch("--num-layers 2 --num-layers 4")
    assert (launch.script, launch.world_size, launch.value("--num-layers")) == ("", None, "4")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("--num-layers '4", "no command line"),
        ("train a model please", "needs the arguments"),
        ("", "needs the arguments"),
        ("--num-layers $LAYERS", "shell variable LAYERS is not set"),
    ],
)
def test_what_is_no_command_says_so_in_a_line(text, says):
    with pytest.raises(UsageError, match=says) as error:
        read_launch(text)
    assert "\n" not in str(error.value)


@given(st.text())
def test_any_text_is_read_or_refused(text):
    try:
        read_launch(text)
    except UsageError:
        pass


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("megatron_args: --num-layers 4\n", "world_size is missing"),
        ("megatron_args: --num-layers 4\nworld_size: 8\nranks: [8]\n", r"ranks must lie in 0\.\.7"),
        ("megatron_args: --num-layers 4\nworld_sise: 8\n", "did you mean 'world_size'"),
        ("megatron_args: 4\nworld_size: 8\n", "megatron_args"),
        ("megatron_args: --num-layers 4\nworld_size: 8\nhardware: {gpu: h1000}\n", "h1000"),
    ],
)
def test_a_recipe_with_a_slip_names_it(text, says):
    with pytest.raises(UsageError, match=says):
        parse_recipe(text, "r.yaml", "r")


def test_a_launch_recipe_states_what_its_options_say():
    recipe = parse_recipe("megatron_args: torchrun --nproc_per_node 2 pretrain_gpt.py --recompute-granularity full\n", "r", "r")
    assert isinstance(recipe, LaunchRecipe)
    assert (recipe.name, recipe.gpus, recipe.stated_fields()) == ("r", 2, {"recompute_granularity"})
