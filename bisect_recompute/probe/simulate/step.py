"""Two whole training iterations with the commit's own schedule; the second has optimizer state: that is the peak."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch

from bisect_recompute.probe.recipe import Recipe
from bisect_recompute.probe.simulate.model import accepted, virtual_stages

ITERATIONS = 2


def simulated_microbatches(recipe: Recipe, iteration: int, rank: int) -> int:
    """The peak is reached once the rank's pipeline stage holds its in-flight microbatches (stages - stage of them with
    1F1B) and goes back through one; later ones repeat it. The first iteration, which only brings optimizer state into
    being, does with as few as show its own peak."""
    p = recipe.parallel
    stages = p.pipeline_model_parallel_size
    if stages == 1:
        enough = 1 + min(iteration, 1)
    elif virtual_stages(recipe):
        enough = 2 * stages
    else:
        stage = rank // (p.world_size // stages)
        enough = stages - stage + 1
    return min(recipe.num_microbatches, enough)


def zeros(recipe: Recipe, shape: tuple[int, int]):
    return torch.zeros(shape, dtype=torch.int64, device="cuda")


def make_batch(recipe: Recipe, model, make_tokens=zeros):
    """What ``pretrain_gpt.py`` puts on the GPU per microbatch: [batch, sequence] tokens, positions and labels (int64),
    loss mask (fp32) and, by default, an attention mask bool [batch, 1, sequence, sequence]; of these the first pipeline
    stage gets what it embeds, the last what it needs for the loss, those between nothing."""
    b, s = recipe.training.micro_batch_size, recipe.training.seq_length
    local = s // recipe.parallel.context_parallel_size
    ahead = bool(getattr(model, "mtp_process", False))
    embeds, loses = model.pre_process or ahead, model.post_process or ahead

    def integers(wanted):
        return make_tokens(recipe, (b, local)) if wanted else None

    tokens, positions, labels = integers(embeds), integers(embeds), integers(loses)
    loss_mask = torch.ones((b, local), dtype=torch.float32, device="cuda") if loses else None
    mask = None
    if recipe.training.create_attention_mask_in_dataloader and (embeds or loses):
        mask = torch.zeros((b, 1, local, s), dtype=torch.bool, device="cuda")
    return tokens, positions, labels, loss_mask, mask


def bare(model):
    """The model inside its wrappers."""
    while hasattr(model, "module"):
        model = model.module
    return model


def forward_step(recipe: Recipe, make_tokens=zeros):
    def loss_function(loss_mask, output):
        losses = output.view(-1).float()
        mask = loss_mask.view(-1).float()
        loss = torch.sum(losses * mask)
        tokens = mask.sum().clone().detach().to(torch.int)
        reported = torch.cat([loss.clone().detach().view(1), tokens.view(1)])
        return loss, tokens, {"lm loss": reported}

    def step(data_iterator, model, *args):
        inside = bare(model)
        tokens, positions, labels, loss_mask, attention_mask = make_batch(recipe, inside, make_tokens)
        # Since multi-token prediction came, the model takes the loss mask too.
        more = accepted(type(inside).forward, loss_mask=loss_mask)
        output = model(tokens, positions, attention_mask, labels=labels, **more)
        return output, lambda out: loss_function(loss_mask, out)

    return step


def connect(config, recipe: Recipe, chunks: list, optimizer):
    """What Megatron-LM's training loop sets on the config before the first iteration."""
    from megatron.core.distributed import finalize_model_grads

    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if recipe.training.overlap_grad_reduce:
        no_sync = [chunk.no_sync for chunk in chunks]
        config.no_sync_func = no_sync if len(chunks) > 1 else no_sync[0]


def train(recipe: Recipe, config, chunks: list, optimizer, meter, microbatches: Sequence[int], make_tokens=zeros):
    """Runs an iteration of each number of microbatches; the ``meter`` hears what comes next and when one has ended.

    ``make_tokens(recipe, shape)`` makes int64 tokens, positions and labels of a shape [batch, sequence].
    """
    from megatron.core.pipeline_parallel import get_forward_backward_func

    schedule = get_forward_backward_func()
    data = iter(lambda: 0, 1)
    arguments = accepted(
        schedule,
        forward_step_func=forward_step(recipe, make_tokens),
        data_iterator=[data] * len(chunks) if len(chunks) > 1 else data,
        model=chunks if len(chunks) > 1 else chunks[0],
        seq_length=recipe.training.seq_length,
        micro_batch_size=recipe.training.micro_batch_size,
        decoder_seq_length=recipe.training.seq_length,
        forward_only=False,
    )
    gc.freeze()  # the model lives to the end: the collections between iterations need not look at it
    for iteration, count in enumerate(microbatches):
        meter.enter("step")
        for chunk in chunks:
            chunk.train()
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        meter.enter("forward")
        losses = schedule(num_microbatches=count, **arguments)
        meter.enter("step")
        optimizer.step()
        meter.take(losses)
        del losses
        gc.collect()
        meter.end_iteration(last_follows=iteration == len(microbatches) - 2)
