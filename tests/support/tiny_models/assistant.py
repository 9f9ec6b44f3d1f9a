# SPDX-License-Identifier: Apache-2.0
"""Gemma 4's drafting head in plain torch, as in checkpoints that vLLM's ``gemma4_mtp`` loads.

Its layers have queries alone. They attend to the keys and values of the target's last layer of the
same kind, window or full. Every token of a proposal is drafted from the position of the last token
that the target has seen: no layer ever sees a drafted token's key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, embedding, gelu
from transformers.models.gemma4.modeling_gemma4 import apply_rotary_pos_emb

from tests.support.tiny_models.heads import HIDDEN_SHARE, PROPOSED_TOKENS, UNROLLED_STEPS


@dataclass(frozen=True)
class Seen:
    """What the target says of N tokens in each of R rows.

    Attributes:
        states: normed output of its last layer, float32 ``[R, N, width]``.
        logits: float32 ``[R, N, vocabulary]``.
        keys, values: of the last layer of each kind, float32 ``[R, heads, N, head size]``.
    """

    states: torch.Tensor
    logits: torch.Tensor
    keys: Mapping[str, torch.Tensor]
    values: Mapping[str, torch.Tensor]


def see(target: Any, tokens: torch.Tensor) -> Seen:
    """Run ``target`` on int64 ``[R, N]``."""
    with torch.no_grad(), _recorded(target) as inputs:
        output = target(input_ids=tokens, use_cache=False, output_hidden_states=True)
        made = {
            kind: _keys_and_values(layer, *inputs[kind])
            for kind, layer in _last_layers(target).items()
        }
    return Seen(
        output.hidden_states[-1],
        output.logits,
        {kind: keys for kind, (keys, _) in made.items()},
        {kind: values for kind, (_, values) in made.items()},
    )


def _last_layers(target: Any) -> dict[str, Any]:
    """The target's last attention of each kind."""
    return {layer.self_attn.layer_type: layer.self_attn for layer in target.model.layers}


@contextmanager
def _recorded(target: Any) -> Iterator[dict[str, tuple[torch.Tensor, Any]]]:
    """By kind, the hidden states and rotary embeddings that enter its last attention."""
    found: dict[str, tuple[torch.Tensor, Any]] = {}

    def record(module: Any, _: Any, given: dict[str, Any]) -> None:
        found[module.layer_type] = given["hidden_states"], given["position_embeddings"]

    hooks = [
        layer.register_forward_pre_hook(record, with_kwargs=True)
        for layer in _last_layers(target).values()
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _keys_and_values(layer: Any, states: torch.Tensor, rope: Any) -> tuple[Any, Any]:
    projected = layer.k_proj(states).unflatten(-1, (-1, layer.head_dim))
    values = projected
    if layer.v_proj is not None:
        values = layer.v_proj(states).unflatten(-1, (-1, layer.head_dim))
    keys = apply_rotary_pos_emb(layer.k_norm(projected), *rope, unsqueeze_dim=2)
    return keys.transpose(1, 2), layer.v_norm(values).transpose(1, 2)


class Norm(nn.Module):
    """Root mean square of ``width`` numbers, with a weight."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Norm the last axis."""
        scale = torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return states * scale * self.weight


class Attention(nn.Module):
    """Queries on keys of the target."""

    def __init__(self, config: Any, kind: str) -> None:
        super().__init__()
        full = kind == "full_attention"
        self.kind, self.heads = kind, config.num_attention_heads
        self.size = config.global_head_dim if full else config.head_dim
        self.window = None if full else config.sliding_window
        width = self.heads * self.size
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        self.q_norm = Norm(self.size, config.rms_norm_eps)

    def forward(
        self, states: torch.Tensor, rope: Any, seen: Seen, hidden: torch.Tensor
    ) -> torch.Tensor:
        """Attend from each position to those up to it.

        Args:
            hidden: bool ``[R, 1, N, N]``, keys that a query may not see, besides.
        """
        queries = self.q_norm(self.q_proj(states).unflatten(-1, (self.heads, self.size)))
        queries = apply_rotary_pos_emb(queries, *rope, unsqueeze_dim=2).transpose(1, 2)
        groups = self.heads // seen.keys[self.kind].shape[1]
        keys = seen.keys[self.kind].repeat_interleave(groups, dim=1)
        values = seen.values[self.kind].repeat_interleave(groups, dim=1)
        scores = queries @ keys.transpose(-1, -2)
        scores = scores.masked_fill(hidden | self._out_of_sight(states.shape[1]), float("-inf"))
        return self.o_proj((scores.softmax(-1) @ values).transpose(1, 2).flatten(2))

    def _out_of_sight(self, length: int) -> torch.Tensor:
        ahead = torch.arange(length)[None] - torch.arange(length)[:, None]
        later = ahead > 0
        return later if self.window is None else later | (ahead <= -self.window)


class Mlp(nn.Module):
    """Gemma's gated layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Of ``[..., width]``."""
        gate = gelu(self.gate_proj(states), approximate="tanh")
        return self.down_proj(gate * self.up_proj(states))


class Layer(nn.Module):
    """Attention and a gated layer, normed before and behind."""

    def __init__(self, config: Any, kind: str) -> None:
        super().__init__()
        self.self_attn = Attention(config, kind)
        self.mlp = Mlp(config)
        width, epsilon = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = Norm(width, epsilon)
        self.post_attention_layernorm = Norm(width, epsilon)
        self.pre_feedforward_layernorm = Norm(width, epsilon)
        self.post_feedforward_layernorm = Norm(width, epsilon)

    def forward(
        self, states: torch.Tensor, rope: Any, seen: Seen, hidden: torch.Tensor
    ) -> torch.Tensor:
        """See ``Attention``."""
        attended = self.self_attn(self.input_layernorm(states), rope, seen, hidden)
        states = states + self.post_attention_layernorm(attended)
        gated = self.mlp(self.pre_feedforward_layernorm(states))
        return states + self.post_feedforward_layernorm(gated)


class Assistant(nn.Module):
    """The head; ``config`` is the Gemma 4 text configuration of its layers."""

    def __init__(self, target: Any, config: Any) -> None:
        super().__init__()
        # In a tuple, so that the target's weights are no parameters of the head.
        self._target = (target,)
        backbone, width = target.config.hidden_size, config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.pre_projection = nn.Linear(2 * backbone, width, bias=False)
        self.post_projection = nn.Linear(width, backbone, bias=False)
        self.kinds = tuple(config.layer_types)
        self.layers = nn.ModuleList(Layer(config, kind) for kind in self.kinds)
        self.norm = Norm(width, config.rms_norm_eps)

    @property
    def target(self) -> Any:
        """The target's transformers model."""
        return self._target[0]

    def forward(
        self,
        tokens: torch.Tensor,
        known: torch.Tensor,
        seen: Seen,
        hidden: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One pass from every position: logits, and what is known in the next pass there.

        Args:
            tokens: int64 ``[R, N]``, the last token before the drafted one.
            known: float32 ``[R, N, width of the target]``.
            hidden: see ``Attention``.
        """
        rows, length = tokens.shape
        if hidden is None:
            hidden = torch.zeros(rows, 1, length, length, dtype=torch.bool)
        weight = self.target.get_input_embeddings().weight
        embedded = embedding(tokens, weight) * known.shape[-1] ** 0.5
        states = self.pre_projection(torch.cat([embedded, known], dim=-1))
        positions = torch.arange(length)[None]
        for kind, layer in zip(self.kinds, self.layers, strict=True):
            rope = self.target.model.rotary_emb(states, positions, kind)
            states = layer(states, rope, seen, hidden)
        states = self.norm(states)
        return states @ self.embed_tokens.weight.T, self.post_projection(states)

    def weights(self) -> dict[str, torch.Tensor]:
        """The checkpoint's tensors, by the names that vLLM loads; they share the head's memory."""
        inner = ("embed_tokens.", "layers.", "norm.")
        return {
            f"model.{name}" if name.startswith(inner) else name: value.detach()
            for name, value in self.state_dict().items()
        }

    def load_weights(self, checkpoint: Mapping[str, torch.Tensor]) -> None:
        """Take over the tensors that ``weights`` names; KeyError if one is missing."""
        for name, value in self.weights().items():
            value.copy_(checkpoint[name])


def assistant_loss(head: Assistant, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy (nats) of the target's own predictions under the head's.

    ``tokens``: int64 ``[rows, length]``. A pass goes on from what the pass before it said at the
    same position, as when the head drafts.
    """
    seen = see(head.target, tokens)
    known, losses = seen.states, []
    length = tokens.shape[1]
    for step in range(UNROLLED_STEPS):
        kept = torch.rand(known.shape[:2]) >= HIDDEN_SHARE
        following = torch.roll(tokens, -1 - step, dims=1)
        logits, known = head(following, known * kept[..., None], seen)
        drafted = length - 1 - step
        wanted = seen.logits[:, 1 + step :].softmax(-1).flatten(0, 1)
        losses.append(cross_entropy(logits[:, :drafted].flatten(0, 1), wanted))
    return torch.stack(losses).mean()


def rows_of_assistant(
    head: Assistant, context: Sequence[int], drafted: Sequence[int]
) -> torch.Tensor:
    """Logits after the accepted ``context`` and after each token drafted since.

    The target has seen all tokens of the context but the last. float32 ``[len(drafted) + 1,
    vocabulary]``.
    """
    with torch.inference_mode():
        seen = see(head.target, torch.tensor([list(context[:-1])]))
        known, rows = seen.states, []
        for token in [context[-1], *drafted]:
            # Only what the last position says is read: others have tokens of another place.
            logits, known = head(torch.full((1, len(context) - 1), token), known, seen)
            rows.append(logits[0, -1])
    return torch.stack(rows)


def assistant_removal_share(head: Assistant, contexts: Sequence[Sequence[int]]) -> float:
    """Share of removals of one key that change one of ``PROPOSED_TOKENS`` proposed tokens."""
    changed = total = 0
    for context in contexts:
        length = len(context)
        # The last row is the undisturbed proposal. The key at the last position is not removed.
        hidden = torch.zeros(length, 1, length, length, dtype=torch.bool)
        for position in range(length - 1):
            hidden[position, 0, -1, position] = True
        with torch.inference_mode():
            seen = see(head.target, torch.tensor([list(context)]).expand(length, -1))
            known, token, proposed = seen.states, seen.logits[:, -1].argmax(-1), []
            for _ in range(PROPOSED_TOKENS):
                logits, known = head(token[:, None].expand(-1, length), known, seen, hidden)
                token = logits[:, -1].argmax(-1)
                proposed.append(token)
        rows = torch.stack(proposed, dim=1)
        changed += int((rows[:-1] != rows[-1]).any(dim=1).sum())
        total += length - 1
    return changed / total
