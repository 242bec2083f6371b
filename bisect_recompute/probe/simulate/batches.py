"""Batches of zeros in the form that Megatron-LM's data sets give, on the CPU: the scripts send them to the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import torch

from bisect_recompute.probe.simulate.device import SimulatedGpu


def replace_loaders(training: ModuleType, global_vars: ModuleType):
    """In ``megatron.training.training``; the loop that wraps them for pipeline stages and reruns stays the commit's."""

    # Since the autumn of 2025 there may be several validation sets.
    several = "valid_dataloaders" in training.build_train_valid_test_data_loaders.__code__.co_varnames

    def build_train_valid_test_data_loaders(*args, **kwargs):
        args = global_vars.get_args()
        args.do_train, args.do_valid, args.do_test = True, False, False
        args.dataloader_type = "external"  # an iterator as it is
        return batches(args), [None] if several else None, None

    training.build_train_valid_test_data_loaders = build_train_valid_test_data_loaders


def share_loss_mask(module: ModuleType):
    """In the module that has ``get_batch_on_this_tp_rank``: what the first rank of a tensor parallel group sends are
    ones, and those that receive know it."""
    real = getattr(module, "get_batch_on_this_tp_rank", None)
    if real is None:
        return

    def get_batch_on_this_tp_rank(*args, **kwargs):
        batch = real(*args, **kwargs)
        mask, values = batch.get("loss_mask"), SimulatedGpu.current.values
        if mask is not None and not values.known(mask):
            values.assign(mask, torch.ones(mask.shape, dtype=mask.dtype))
        return batch

    module.get_batch_on_this_tp_rank = get_batch_on_this_tp_rank


def batches(args) -> Iterator[dict[str, torch.Tensor]]:
    """Endless. Integers are int64, shapes [micro batch, sequence]; GPT's attention mask is bool [micro batch, 1, s, s]."""
    make = _of_t5 if _is_t5(args) else _of_bert if args.tokenizer_type.startswith("Bert") else _of_gpt
    while True:
        yield make(args)


def _is_t5(args) -> bool:
    return getattr(args, "decoder_seq_length", None) is not None


def _integers(args, sequence: int, *names: str) -> dict[str, torch.Tensor]:
    return {name: torch.zeros((args.micro_batch_size, sequence), dtype=torch.int64) for name in names}


def _of_gpt(args):
    b, s = args.micro_batch_size, args.seq_length
    batch = _integers(args, s, "tokens", "labels", "position_ids")
    batch["loss_mask"] = torch.ones((b, s), dtype=torch.float32)
    if getattr(args, "create_attention_mask_in_dataloader", True):
        batch["attention_mask"] = torch.zeros((b, 1, s, s), dtype=torch.bool)
    return batch


def _of_bert(args):
    batch = _integers(args, args.seq_length, "text", "types", "labels", "loss_mask", "padding_mask")
    batch["is_random"] = torch.zeros((args.micro_batch_size,), dtype=torch.int64)
    return batch


def _of_t5(args):
    encoder, decoder = args.encoder_seq_length or args.seq_length, args.decoder_seq_length
    return _integers(args, encoder, "text_enc", "enc_mask") | _integers(args, decoder, "text_dec", "labels", "loss_mask", "dec_mask")
