"""The tokenizer of a simulated run: a vocabulary size and special tokens, no text."""

from __future__ import annotations

from types import ModuleType

SIZES = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceLowerCase": 30522,  # bert-base/large-uncased
    "BertWordPieceCase": 28996,  # bert-base/large-cased
    "Llama2Tokenizer": 32000,
    "GPTSentencePieceTokenizer": 256000,  # nemotron_2_256k.model, which Megatron-LM's functional tests train with
}
"""Tokenizer type -> entries of the vocabulary that public checkpoints of that kind have."""

BERT_SPECIAL = 2
"""Megatron-LM's BERT tokenizers add a beginning and an end token of their own."""


class Tokenizer:
    """Every special token (``eod``, ``pad``, ``mask`` ...) is entry 0."""

    unique_identifiers: dict = {}

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return 0


def vocab_size(args) -> int:
    """Raises ValueError when the arguments name a tokenizer whose size is in its file alone."""
    kind = args.tokenizer_type
    stated = getattr(args, "vocab_size", None)
    if kind == "NullTokenizer" or (stated and kind not in SIZES):
        return stated
    if kind not in SIZES:
        raise ValueError(f"the vocabulary size of {kind} is in its file; add --vocab-size")
    extra = getattr(args, "vocab_extra_ids", 0) or 0
    return SIZES[kind] + extra + (BERT_SPECIAL if kind.startswith("Bert") else 0)


def replace_tokenizer(global_vars: ModuleType):
    """In ``megatron.training.global_vars``, whose ``build_tokenizer`` also pads the vocabulary."""

    def build_tokenizer(args, *rest, **kwargs):
        size = vocab_size(args)
        unit = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
        if getattr(args, "padded_vocab_size", None) is None:
            args.padded_vocab_size = -(-size // unit) * unit
        return Tokenizer(size)

    global_vars.build_tokenizer = build_tokenizer
