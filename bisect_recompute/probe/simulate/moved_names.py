"""Names of Transformer Engine at the places where Megatron Core of 2024 and 2025 looks for them. Without them those
revisions would silently train without their fused kernels, which their own containers had."""

from __future__ import annotations

import importlib


def install():
    attention = importlib.import_module("transformer_engine.pytorch.attention")
    rope = importlib.import_module("transformer_engine.pytorch.attention.rope")
    utils = importlib.import_module("transformer_engine.pytorch.utils")

    class FusedRoPEFunc:
        """Its first form: no start positions, no interleaving."""

        @staticmethod
        def apply(t, freqs, tensor_format="sbhd", cu_seqlens=None, cp_size=1, cp_rank=0):
            return rope.FusedRoPEFunc.apply(t, freqs, None, tensor_format, False, cu_seqlens, cp_size, cp_rank)

    attention.FusedRoPEFunc = FusedRoPEFunc
    attention.apply_rotary_pos_emb = rope.apply_rotary_pos_emb
    attention._SplitAlongDim = utils.SplitAlongDim
