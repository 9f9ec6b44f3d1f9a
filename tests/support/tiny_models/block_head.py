# SPDX-License-Identifier: Apache-2.0
"""DFlash and DSpark heads: all tokens of a proposal from one pass over masks, in torch.

What DFlash is follows the checkpoints that vLLM 0.23.0 loads (``qwen3_dflash``). The target's
hidden states, mixed from several depths, are turned into keys and values by each layer of the head:
its context. Its queries are a block of their own, the token that the target has just chosen and a
mask for each token to be drafted, at the positions after the context; they attend to all of the
context and to all of the block, later masks included.

Layers with a window, which vLLM 0.30.0 has too, are told by ``layer_types``. As in published heads,
their queries see no later mask, if ``causal`` of ``dflash_config`` does not say otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    Qwen3MLP,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

from tests.support.tiny_models.heads import Head

ANCHORS = 24
"""Blocks that are trained on in each row of a batch."""

HIDDEN_SHARE = 0.15
"""Share of the context's keys that are hidden in training, so that a head needs all the others."""


class BlockAttention(Qwen3Attention):
    """Queries of blocks over the keys of the context and of the blocks.

    ``states`` [rows, queries, width], ``context`` [rows, length, width]; ``cosines`` and ``sines``
    [rows, length + queries, head size] and ``attention_mask`` [rows, 1, queries, length + queries]
    for the context first.
    """

    def forward(
        self,
        states: torch.Tensor,
        context: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor,
    ) -> torch.Tensor:
        every = torch.cat([context, states], dim=1)
        rows, keys = every.shape[:2]
        queries = states.shape[1]

        def heads(projected: torch.Tensor) -> torch.Tensor:
            return projected.view(rows, projected.shape[1], -1, self.head_dim)

        # Queries stand last, behind rows that are thrown away: both get the same rotary rows.
        wide = self.q_norm(heads(self.q_proj(every))).transpose(1, 2)
        key = self.k_norm(heads(self.k_proj(every))).transpose(1, 2)
        wide, key = apply_rotary_pos_emb(wide, key, *rotary)
        value = heads(self.v_proj(every)).transpose(1, 2)
        attended, _ = eager_attention_forward(
            self, wide[:, :, keys - queries :], key, value, attention_mask, scaling=self.scaling
        )
        output: torch.Tensor = self.o_proj(attended.reshape(rows, queries, -1))
        return output


@dataclass(frozen=True)
class Sight:
    """What queries of a layer see: whether no later mask, and how many tokens up to their own."""

    causal: bool = False
    window: int | None = None

    def sees(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """For each of these positions int64, bool of their common shape."""
        behind = queries - keys
        seen = torch.ones_like(behind, dtype=torch.bool)
        if self.causal:
            seen &= behind >= 0
        if self.window is not None:
            seen &= behind.abs() < self.window
        return seen


def sights_of(config: Qwen3Config, options: Mapping[str, Any]) -> list[Sight]:
    """What queries of each layer see."""
    sights = []
    for kind in config.layer_types:
        slides = kind == "sliding_attention"
        causal = bool(options.get("causal", slides))
        sights.append(Sight(causal, config.sliding_window if slides else None))
    return sights


class BlockLayer(nn.Module):
    """One layer of the head: attention and MLP with norms before them."""

    def __init__(self, config: Qwen3Config, index: int) -> None:
        super().__init__()
        width, epsilon = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = Qwen3RMSNorm(width, eps=epsilon)
        self.self_attn = BlockAttention(config, index)
        self.post_attention_layernorm = Qwen3RMSNorm(width, eps=epsilon)
        self.mlp = Qwen3MLP(config)

    def forward(
        self, states: torch.Tensor, context: torch.Tensor, rotary: Any, mask: torch.Tensor
    ) -> torch.Tensor:
        states = states + self.self_attn(
            self.input_layernorm(states), context, rotary, attention_mask=mask
        )
        whole: torch.Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return whole


class BlockHead(Head):
    """The head on ``target``; ``config.dflash_config`` holds its mask token and its depths.

    ``target_layer_ids`` are the layers whose output it takes, so their hidden states are one
    further on. ``unanswered``: rows at the head of a block that draft nothing.
    """

    unanswered = 1

    def __init__(self, target: Any, config: Qwen3Config) -> None:
        super().__init__(target)
        width, epsilon = config.hidden_size, config.rms_norm_eps
        options = self.options(config)
        self.depths = tuple(i + 1 for i in options["target_layer_ids"])
        self.mask_token = int(options["mask_token_id"])
        self.fc = nn.Linear(target.config.hidden_size * len(self.depths), width, bias=False)
        self.hidden_norm = Qwen3RMSNorm(width, eps=epsilon)
        self.layers = nn.ModuleList(
            BlockLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.sights = sights_of(config, options)
        self.norm = Qwen3RMSNorm(width, eps=epsilon)
        self.rope = Qwen3RotaryEmbedding(config)

    def options(self, config: Qwen3Config) -> dict[str, Any]:
        """Its mask token and depths, where the method writes them."""
        options: dict[str, Any] = config.dflash_config
        return options

    def after(self, logits: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """``logits`` [..., vocabulary] of tokens that follow those ``before`` int64 [...]."""
        return logits

    def known(self, hidden_states: Sequence[torch.Tensor]) -> torch.Tensor:
        mixed = self.fc(torch.cat([hidden_states[i] for i in self.depths], dim=-1))
        context: torch.Tensor = self.hidden_norm(mixed)
        return context

    def blocks(
        self,
        known: torch.Tensor,
        tokens: torch.Tensor,
        anchors: torch.Tensor,
        drafted: int,
        hidden: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits ``[rows, blocks, drafted, vocabulary]`` of what follows each block's token.

        Args:
            known: ``[rows, length, width]``.
            tokens, anchors: int64 ``[rows, blocks]``: each block's first token, and its position.
                The block sees the context before that.
            drafted: tokens that a block drafts.
            hidden: bool ``[rows, length]``, keys of the context that no query sees.
        """
        rows, length = known.shape[:2]
        size = self.unanswered + drafted
        ids = torch.full((rows, tokens.shape[1], size), self.mask_token)
        ids[:, :, 0] = tokens
        states = self.embed(ids.flatten(1))
        at = (anchors[:, :, None] + torch.arange(size)).flatten(1)
        positions = torch.cat([torch.arange(length).expand(rows, -1), at], dim=1)
        seen = torch.arange(length) < anchors.repeat_interleave(size, dim=1)[:, :, None]
        if hidden is not None:
            seen = seen & ~hidden[:, None]
        block = torch.arange(states.shape[1]) // size
        together = (block[:, None] == block).expand(rows, -1, -1)
        exist = torch.cat([seen, together], dim=2)
        masks = {}
        for sight in set(self.sights):
            shown = exist & sight.sees(at[:, :, None], positions[:, None])
            mask = torch.zeros(rows, 1, states.shape[1], length + states.shape[1])
            masks[sight] = mask.masked_fill_(~shown[:, None], float("-inf"))
        rotary = self.rope(states, positions)
        for layer, sight in zip(self.layers, self.sights, strict=True):
            states = layer(states, known, rotary, masks[sight])
        answered = self.norm(states).view(rows, -1, size, states.shape[-1])
        return self.logits(answered[:, :, self.unanswered :])

    def weights(self) -> dict[str, torch.Tensor]:
        own = {name: value for name, value in self.state_dict().items() if "rope" not in name}
        return {name: value.detach() for name, value in own.items()}


class MarkovBias(nn.Module):
    """What a token adds to the logits of the next one."""

    def __init__(self, vocabulary: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocabulary, rank)
        self.markov_w2 = nn.Linear(rank, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        bias: torch.Tensor = self.markov_w2(self.markov_w1(tokens))
        return bias


class MarkovHead(BlockHead):
    """A DSpark head: a block whose first row drafts, and a bias by the token before.

    As the checkpoints that vLLM 0.30.0 loads (``qwen3_dspark``). The row of the token that the
    target has chosen drafts the next one, so K tokens take K rows. A drafted token adds a row of
    numbers to the logits of the next one: a product of two thin matrices, called the Markov head.

    ``config`` holds its mask token, its depths and ``markov_rank``.
    """

    unanswered = 0

    def __init__(self, target: Any, config: Qwen3Config) -> None:
        super().__init__(target, config)
        self.markov_head = MarkovBias(config.vocab_size, config.markov_rank)

    def options(self, config: Qwen3Config) -> dict[str, Any]:
        return {name: getattr(config, name) for name in ("target_layer_ids", "mask_token_id")}

    def after(self, logits: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        return logits + self.markov_head(before)


def block_loss(head: BlockHead, tokens: torch.Tensor, drafted: int) -> torch.Tensor:
    """Mean cross entropy (nats) of the target's own predictions under the head's.

    ``tokens``: int64 ``[rows, length]``. Blocks begin at random positions but the first.
    """
    with torch.no_grad():
        output = head.target(input_ids=tokens, use_cache=False, output_hidden_states=True)
    rows, length = tokens.shape
    anchors = torch.randint(1, length - drafted, (rows, ANCHORS))
    at = anchors[:, :, None] + torch.arange(drafted)
    every = torch.arange(rows)[:, None, None]
    wanted = output.logits[every, at].softmax(-1)
    hidden = torch.rand(rows, length) < HIDDEN_SHARE
    known = head.known(output.hidden_states)
    found = head.blocks(known, tokens.gather(1, anchors), anchors, drafted, hidden)
    found = head.after(found, tokens[every, at])
    return cross_entropy(found.flatten(0, 2), wanted.flatten(0, 2))


def propose(
    head: BlockHead,
    known: torch.Tensor,
    token: int,
    drafted: int,
    hidden: torch.Tensor | None = None,
) -> torch.Tensor:
    """Logits ``[rows, drafted, vocabulary]`` after ``token``, which follows the known context.

    What the token before each of them adds (``after``) is not in them.
    """
    rows, length = known.shape[:2]
    tokens, anchors = torch.full((rows, 1), token), torch.full((rows, 1), length)
    with torch.inference_mode():
        return head.blocks(known, tokens, anchors, drafted, hidden)[:, 0]


def chosen(head: BlockHead, logits: torch.Tensor, token: int) -> torch.Tensor:
    """The tokens int64 [rows, drafted] that the head drafts one after another behind ``token``."""
    tokens = [torch.full(logits.shape[:1], token)]
    for row in logits.unbind(1):
        tokens.append(head.after(row, tokens[-1]).argmax(-1))
    return torch.stack(tokens[1:], dim=1)


def block_removal_share(head: BlockHead, contexts: Sequence[Sequence[int]], drafted: int) -> float:
    """Share of single keys of the context whose removal changes a proposed token."""
    changed = total = 0
    for context in contexts:
        *before, token = context
        with torch.inference_mode():
            output = head.target(
                input_ids=torch.tensor([before]), use_cache=False, output_hidden_states=True
            )
            known = head.known(output.hidden_states)
        hidden = torch.eye(len(before) + 1, len(before), dtype=torch.bool)
        logits = propose(head, known.expand(len(before) + 1, -1, -1), token, drafted, hidden)
        with torch.inference_mode():
            proposals = chosen(head, logits, token)
        changed += int((proposals[:-1] != proposals[-1]).any(dim=1).sum())
        total += len(before)
    return changed / total
