"""What ``AsyncGRPOTrainer`` has for GPUs alone, by torch's own attention; no more is changed."""

from __future__ import annotations

from typing import Any

import pytest


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it run on a CPU."""
    import types

    import torch
    from torch.nn import functional
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    def varlen(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *rest: Any, **more: Any) -> Any:
        scale, found = more.get("softmax_scale"), []
        for i in range(len(cu_q) - 1):
            qi = q[cu_q[i] : cu_q[i + 1]].transpose(0, 1)
            ki = k[cu_k[i] : cu_k[i + 1]].transpose(0, 1)
            vi = v[cu_k[i] : cu_k[i + 1]].transpose(0, 1)
            times = qi.shape[0] // ki.shape[0]
            ki, vi = ki.repeat_interleave(times, 0), vi.repeat_interleave(times, 0)
            lq, lk = qi.shape[1], ki.shape[1]
            mask = torch.ones(lq, lk, dtype=torch.bool).tril(lk - lq)
            out = functional.scaled_dot_product_attention(qi, ki, vi, attn_mask=mask, scale=scale)
            found.append(out.transpose(0, 1))
        return torch.cat(found)

    module = types.SimpleNamespace(flash_attn_varlen_func=varlen)
    monkeypatch.setattr(packing, "_flash_attn", lambda: module)
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *a, **k: None)
