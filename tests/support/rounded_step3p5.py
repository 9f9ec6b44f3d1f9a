# SPDX-License-Identifier: Apache-2.0
"""Step-3.5 and its drafting layer in plain torch, rounded to bfloat16 where an engine rounds.

A float32 run is no judge of an engine in bfloat16: its router takes one of two experts that are
nearly equal, and all that follows is another model's. So this one rounds behind each module, and
computes inside of them in float32, as operators do:

- norms round once, behind the factor;
- queries and keys are normed and turned as in vllm-ascend's fused kernel
  (``split_qkv_rmsnorm_rope``): the factor ``1 + weight``, the normed heads, cosines and sines, each
  product and each sum are rounded;
- scores and their softmax are float32, what is attended to is rounded, and again behind its gate;
- gated activations round behind the product;
- the router is float32 throughout, of rounded states. The shares that it gives are rounded, and so
  are the experts' results and their weighted sum;
- the last projection, alone, is not rounded: logits would tie where nothing does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM

from tests.support.speculation import rows_of_head
from tests.support.tiny_models import derived, further_models, step3p5
from tests.support.tiny_models.plain_attention import by_head, within_window

MANTISSA_BITS = 8
"""Of bfloat16, with the one that is not stored."""


def spacing(value: float) -> float:
    """The distance of two neighbours among bfloat16's numbers at ``value``."""
    return float(2.0 ** (int(torch.frexp(torch.tensor(value)).exponent) - MANTISSA_BITS))


def undecided_below(row: torch.Tensor) -> float:
    """The lead, among logits, that decides nothing in bfloat16: two spacings of the largest one.

    An engine rounds a logit once itself, by up to half a spacing. It computes it of a state whose
    elements are rounded as finely, relative to their size, so that it is off by as much again where
    another order of summation rounded them elsewhere. Both hold for either of two logits.
    """
    return 2 * spacing(float(row.max()))


def norm(self: Any, states: torch.Tensor) -> torch.Tensor:
    """``forward`` of ``ZeroCentredNorm``."""
    wide = states.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
    return (normed * (1 + self.weight.float())).to(states.dtype)


def norm_of_heads(norm: Any, heads: torch.Tensor) -> torch.Tensor:
    """As the fused kernel: the factor ``1 + weight`` is rounded before it is multiplied with."""
    wide = heads.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps)
    return (normed * (norm.weight + 1).float()).to(heads.dtype)


def turned(heads: torch.Tensor, rotated: int, base: float) -> torch.Tensor:
    """As ``plain_attention.turned`` in the dtype of ``heads``, of which each step is rounded."""
    half = rotated // 2
    angles = torch.arange(heads.shape[-2])[:, None] * base ** (-torch.arange(half) / half)
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first, second, kept = heads.split([half, half, heads.shape[-1] - rotated], dim=-1)
    halves = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat([*halves, kept], dim=-1)


def attention(self: Any, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """``forward`` of ``Attention``."""
    query = norm_of_heads(self.q_norm, by_head(self.q_proj(hidden_states), self.size))
    key = norm_of_heads(self.k_norm, by_head(self.k_proj(hidden_states), self.size))
    query, key = (turned(part, self.rotated, self.base).float() for part in (query, key))
    value = by_head(self.v_proj(hidden_states), self.size).float()
    shared = self.heads // self.groups
    key, value = (part.repeat_interleave(shared, dim=1) for part in (key, value))
    scores = within_window(query @ key.mT * self.size**-0.5 + attention_mask.float(), self.window)
    attended = (scores.softmax(-1) @ value).transpose(1, 2).to(hidden_states.dtype)
    gated = attended * self.g_proj(hidden_states).sigmoid()[..., None]
    states: torch.Tensor = self.o_proj(gated.flatten(-2))
    return states


def activated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Rounded once, behind the product."""
    return (silu(gate.float()) * up.float()).to(gate.dtype)


def mlp(self: Any, states: torch.Tensor) -> torch.Tensor:
    """``forward`` of ``Mlp``."""
    output: torch.Tensor = self.down_proj(activated(self.gate_proj(states), self.up_proj(states)))
    return output


def experts(self: Any, states: torch.Tensor) -> torch.Tensor:
    """``forward`` of ``Experts``; its router has weights in float32."""
    tokens = states.flatten(0, -2)
    scores = self.gate(tokens.float()).sigmoid()
    chosen = (scores + self.router_bias).topk(self.chosen, dim=-1).indices
    shares = scores.gather(-1, chosen)
    shares = (shares / shares.sum(-1, keepdim=True) * self.scale).to(states.dtype).float()
    weights = torch.zeros_like(scores).scatter(-1, chosen, shares)
    outputs = self.down_proj(activated(self.gate_proj(tokens), self.up_proj(tokens)))
    return (outputs.float() * weights.mT[..., None]).sum(0).to(states.dtype).view_as(states)


FORWARDS: dict[type, Callable[..., torch.Tensor]] = {
    step3p5.ZeroCentredNorm: norm,
    step3p5.Attention: attention,
    step3p5.Mlp: mlp,
    step3p5.Experts: experts,
}


def rounded(module: nn.Module) -> nn.Module:
    """``module`` with weights in bfloat16, the router's and the last projection's aside."""
    wide = {name: value.clone() for name, value in module.state_dict().items()}
    module.to(torch.bfloat16)
    for part in module.modules():
        if type(part) in FORWARDS:
            vars(part)["forward"] = functools.partial(FORWARDS[type(part)], part)
        if isinstance(part, step3p5.NormedHead):
            # Of weights that were rounded, as an engine's are.
            part.output.float().register_forward_pre_hook(lambda _, given: (given[0].float(),))
    for name, part in module.named_modules():
        if isinstance(part, step3p5.Experts):
            part.gate.weight.data = wide[f"{name}.gate.weight"]
            part.router_bias.data = wide[f"{name}.router_bias"]
    return module.eval()


@functools.lru_cache(maxsize=2)
def load(directory: Path) -> Any:
    """The target in ``directory``."""
    further_models.register()
    return rounded(
        AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager", local_files_only=True
        )
    )


@functools.lru_cache(maxsize=2)
def load_head(checkpoint: Path, target: Path) -> Any:
    """The drafting layer in ``checkpoint`` on the target in ``target``."""
    return rounded(derived.load_head(checkpoint, load(target)))


@functools.lru_cache(maxsize=2)
def load_draft_model(directory: Path) -> Any:
    """A model of transformers' own in bfloat16, its last projection in float32."""
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16, attn_implementation="eager", local_files_only=True
    )
    model.lm_head.float().register_forward_pre_hook(lambda _, given: (given[0].float(),))
    # Where that projection is the embedding too, states would begin in float32, and go on so.
    embedding = model.get_input_embeddings()
    embedding.register_forward_hook(lambda _, given, states: states.to(torch.bfloat16))
    return model.eval()


@dataclass(frozen=True)
class RoundedDraftModel:
    """Method ``draft_model``; see ``speculation.DraftModel``."""

    checkpoint: Path

    def rows(self, context: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        """The model's own logits."""
        return logits_of(load_draft_model(self.checkpoint), [*context, *drafted])[
            len(context) - 1 :
        ]


@dataclass(frozen=True)
class RoundedLayer:
    """Method ``mtp``; see ``speculation.DraftHead``."""

    checkpoint: Path
    target: Path

    def rows(self, context: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        """The drafting layer's logits."""
        head = load_head(self.checkpoint, self.target)
        with torch.inference_mode():
            seen = load(self.target)(
                input_ids=torch.tensor([list(context[:-1])]),
                use_cache=False,
                output_hidden_states=True,
            )
            return rows_of_head(head, head.known(seen.hidden_states), context, drafted)


def logits_of(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Logits after each token, float32 ``[len(tokens), vocabulary]``."""
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits
    return logits[0].float()


def rows(directory: Path, context: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """The target's logits after ``context`` and after each of ``tokens``, float32."""
    return logits_of(load(directory), [*context, *tokens])[len(context) - 1 :]
