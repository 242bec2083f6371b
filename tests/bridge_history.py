"""A repository in the manner of Megatron Bridge, which pins a Megatron-LM made for tests as a submodule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from command_line import History, megatron_history
from gitrepo import GitRepo

SUBMODULE = "3rdparty/Megatron-LM"
RECIPES = "src/megatron/bridge/recipes/lab/toy.py"
COMMON = "src/megatron/bridge/recipes/lab/common.py"
RECIPE = "toy_pretrain_2gpu_h100_bf16_config"
PROVIDER = '''\
from dataclasses import dataclass

import torch.nn.functional as F
from megatron.core.transformer import TransformerConfig


@dataclass
class GPTModelProvider(TransformerConfig):
    vocab_size: int = 256
    position_embedding_type: str = "rope"
    share_embeddings_and_output_weights: bool = False
    seq_length: int = 1024


@dataclass
class ToyModelProvider(GPTModelProvider):
    num_layers: int = 2
    hidden_size: int = 64
    ffn_hidden_size: int = 256
    num_attention_heads: int = 4
    normalization: str = "RMSNorm"
    gated_linear_unit: bool = True
    activation_func: object = F.silu
    add_bias_linear: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    bias_activation_fusion: bool = False
'''
TOY = f'''\
from megatron.bridge import AutoBridge
from megatron.bridge.models.gpt_provider import ToyModelProvider
from megatron.bridge.recipes.lab.common import recompute
from megatron.bridge.training.config import ConfigContainer, DistributedDataParallelConfig, TrainingConfig
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig


def {RECIPE}() -> ConfigContainer:
    cfg = ConfigContainer(
        model=ToyModelProvider(seq_length=4096),
        train=TrainingConfig(micro_batch_size=1, global_batch_size=2),
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=True),
        mixed_precision=MixedPrecisionConfig(bf16=True, grad_reduce_in_fp32=True),
    )
    recompute(cfg)
    return cfg


def toy_pretrain_config() -> ConfigContainer:
    cfg = {RECIPE}()
    return cfg


def stranger_pretrain_2gpu_config() -> ConfigContainer:
    cfg = {RECIPE}()
    cfg.model = AutoBridge.from_hf_pretrained("nobody/knows-this").to_megatron_provider()
    return cfg
'''
SELECTIVE = '''\
KEPT = ["core_attn"{more}]


def recompute(cfg):
    cfg.model.recompute_granularity = "selective"
    cfg.model.recompute_modules = list(KEPT)
'''


@dataclass(frozen=True)
class BridgeHistory:
    """``shas`` by name, oldest first: base, readme, dropped (mlp is recomputed no more), docs, idle (a bump without effect),
    bump (brings ``kept`` of the submodule), tip. From docs another branch: both (mlp again, and an idle bump in one commit)."""

    repo: GitRepo
    core: History
    shas: dict[str, str]

    def range(self, good: str, bad: str) -> str:
        return f"{self.shas[good]}..{self.shas[bad]}"


def bridge_history(folder: Path) -> BridgeHistory:
    core = megatron_history(folder)
    repo = GitRepo(folder / "bridge")
    files = {
        "src/megatron/bridge/models/gpt_provider.py": PROVIDER,
        RECIPES: TOY,
        COMMON: SELECTIVE.format(more=', "mlp"'),
    }
    shas = {}

    def commit(name: str, files: dict[str, str], pin: str = "") -> None:
        repo.write(files)
        repo.git("add", "-A", "--ignore-errors")
        if pin:
            repo.git("update-index", "--add", "--cacheinfo", f"160000,{core.shas[pin]},{SUBMODULE}")
        repo.git("commit", "-q", "--allow-empty", "-m", f"{name} the lab", **repo._dates())
        shas[name] = repo.head()

    commit("base", files, pin="base")
    commit("readme", {"README.md": "read me\n"}, pin="base")
    commit("dropped", {COMMON: SELECTIVE.format(more="")}, pin="base")
    commit("docs", {"docs.md": "docs\n"}, pin="base")
    commit("idle", {}, pin="comment")
    commit("bump", {}, pin="tip")
    commit("tip", {"README.md": "read me again\n"}, pin="tip")
    repo.switch("other", shas["base"])
    commit("both", {COMMON: SELECTIVE.format(more="")}, pin="comment")
    repo.switch("main")
    return BridgeHistory(repo, core, shas)
