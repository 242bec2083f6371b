"""Floating-point operations of the matrix products: 2 m n k each; everything else is not counted."""

from __future__ import annotations

import torch

aten = torch.ops.aten


def _mm(a, b, **_):
    return 2.0 * a.shape[0] * a.shape[1] * b.shape[1]


def _bmm(a, b, **_):
    return 2.0 * a.shape[0] * a.shape[1] * a.shape[2] * b.shape[2]


OPERATORS = {
    aten.mm.default: _mm,
    aten.mm.out: _mm,
    aten.addmm.default: lambda _, a, b, **kw: _mm(a, b),
    aten.addmm.out: lambda _, a, b, **kw: _mm(a, b),
    aten.addmm_.default: lambda _, a, b, **kw: _mm(a, b),
    aten.bmm.default: _bmm,
    aten.baddbmm.default: lambda _, a, b, **kw: _bmm(a, b),
    aten.baddbmm_.default: lambda _, a, b, **kw: _bmm(a, b),
}


def attention(query_shape, head_dim_v: int, keys: int, causal: bool, backward: bool) -> float:
    """Fused attention. Forward: two products of [queries, keys] per head, half of it under a causal mask; backward does
    five such products (one is a recomputation of the scores). ``query_shape``: (batch, heads, queries, head_dim)."""
    batch, heads, queries, head_dim = query_shape
    product = 2.0 * batch * heads * queries * keys
    share = 0.5 if causal else 1.0
    return share * product * ((3 * head_dim + 2 * head_dim_v) if backward else (head_dim + head_dim_v))
