# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's logits in plain torch: the judge of engines, for transformers does not have it.

Written from the formulas of DeepSeek-V4's published inference code as vLLM documents them, over
whole sequences and without any cache. It rounds where the model does, to bfloat16 behind each
module and to 8 bits in the indexer, because vllm-ascend runs the family in bfloat16 only. The
checkpoint is ``tiny_models.deepseek_v4``'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear, pad, silu, softplus

HEADS, HEAD_SIZE, ROPE_SIZE = 64, 512, 64
INDEX_HEADS, INDEX_SIZE = 64, 128
WINDOW = 128
KNOWN_SEQUENCES = 16
POST_FACTOR = 2.0

Weights = Mapping[str, torch.Tensor]


DRAFT_LAYER = "mtp.0"
"""Prefix of the weights of the layer that drafts."""


class Reference:
    """The model of ``config`` and ``weights`` over whole sequences, on the host.

    ``changes``: values of the configuration that an engine was given in place of the checkpoint's.
    """

    def __init__(self, config: Mapping[str, Any], weights: Weights, **changes: Any) -> None:
        self.config, self.weights = {**config, **changes}, weights
        self._known: list[tuple[list[int], torch.Tensor]] = []

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits after each token, float32 ``[len(tokens), vocabulary]``."""
        with torch.inference_mode():
            hidden = self.normed(self.known_streams(tokens))
            return linear(hidden, self.weights["lm_head.weight"]).float()

    def known_streams(self, tokens: Sequence[int]) -> torch.Tensor:
        """``streams``, not computed again for what a known sequence begins with."""
        wanted = list(tokens)
        for known, streams in self._known:
            if known[: len(wanted)] == wanted:
                return streams[: len(wanted)]
        streams = self.streams(wanted)
        self._known = [(wanted, streams), *self._known[:KNOWN_SEQUENCES]]
        return streams

    def streams(self, tokens: Sequence[int]) -> torch.Tensor:
        """The residual streams behind the last layer, ``[len(tokens), streams, width]``."""
        ids = torch.tensor(list(tokens))
        with torch.inference_mode():
            streams = self.weights["model.embed_tokens.weight"][ids]
            streams = streams.unsqueeze(1).repeat(1, self.config["hc_mult"], 1)
            for index in range(self.config["num_hidden_layers"]):
                ratio = self.config["compress_ratios"][index]
                streams = self._layer(f"model.layers.{index}", ratio, streams, ids)
            return streams

    def normed(self, streams: torch.Tensor) -> torch.Tensor:
        """What the output matrix is multiplied with, ``[tokens, width]``."""
        return norm(self._head(streams, "model"), self.weights["model.norm.weight"])

    def draft_streams(
        self, tokens: Sequence[int], known: torch.Tensor, first: int = 0
    ) -> torch.Tensor:
        """The streams behind the layer that drafts, ``[len(tokens), streams, width]``.

        It stands at positions from ``first`` on; at each it is given the token of the position
        behind and the streams ``known`` of the position itself.
        """
        name, ids = DRAFT_LAYER, torch.tensor(list(tokens))
        # At position 0 the token is hidden.
        visible = (torch.arange(len(ids)) + first > 0).unsqueeze(1)
        embedded = self.weights[f"{name}.emb.tok_emb.weight"][ids] * visible
        embedded = norm(embedded, self.weights[f"{name}.enorm.weight"])
        known = norm(known, self.weights[f"{name}.hnorm.weight"])
        streams = linear(known, self.weights[f"{name}.h_proj.weight"])
        streams = linear(embedded, self.weights[f"{name}.e_proj.weight"]).unsqueeze(1) + streams
        return self._layer(name, 0, streams, ids, first)

    def draft_normed(self, streams: torch.Tensor) -> torch.Tensor:
        """What the drafting layer's output matrix is multiplied with."""
        return norm(self._head(streams, DRAFT_LAYER), self.weights[f"{DRAFT_LAYER}.norm.weight"])

    def _layer(
        self, name: str, ratio: int, streams: torch.Tensor, ids: torch.Tensor, first: int = 0
    ) -> torch.Tensor:
        x, post, comb = self._enter(streams, f"{name}.hc_attn")
        x = norm(x, self.weights[f"{name}.input_layernorm.weight"])
        base = self.config["compress_rope_theta" if ratio > 1 else "rope_theta"]
        attention = Attention(self.weights, f"{name}.self_attn", self.config, ratio, base)
        streams = leave(attention(x, first), streams, post, comb)
        x, post, comb = self._enter(streams, f"{name}.hc_ffn")
        x = norm(x, self.weights[f"{name}.post_attention_layernorm.weight"])
        return leave(self._experts(x, f"{name}.mlp", ids), streams, post, comb)

    def _mixes(self, streams: torch.Tensor, name: str) -> torch.Tensor:
        flat = streams.float().flatten(1)
        root = torch.rsqrt(flat.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return linear(flat, self.weights[f"{name}_fn"]) * root

    def _enter(
        self, streams: torch.Tensor, name: str
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The input of a part of a layer, and how its output is mixed in."""
        count, epsilon = self.config["hc_mult"], self.config["hc_eps"]
        scale, base = self.weights[f"{name}_scale"], self.weights[f"{name}_base"]
        mixes = self._mixes(streams, name)
        pre = torch.sigmoid(mixes[:, :count] * scale[0] + base[:count]) + epsilon
        middle = slice(count, 2 * count)
        post = torch.sigmoid(mixes[:, middle] * scale[1] + base[middle]) * POST_FACTOR
        comb = (mixes[:, 2 * count :] * scale[2] + base[2 * count :]).view(-1, count, count)
        comb = comb.softmax(-1) + epsilon
        comb = comb / (comb.sum(1, keepdim=True) + epsilon)
        for _ in range(self.config["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(2, keepdim=True) + epsilon)
            comb = comb / (comb.sum(1, keepdim=True) + epsilon)
        return torch.einsum("tn,tnh->th", pre, streams.float()).bfloat16(), post, comb

    def _head(self, streams: torch.Tensor, name: str) -> torch.Tensor:
        mixes = self._mixes(streams, f"{name}.hc_head") * self.weights[f"{name}.hc_head_scale"]
        pre = torch.sigmoid(mixes + self.weights[f"{name}.hc_head_base"]) + self.config["hc_eps"]
        return torch.einsum("tn,tnh->th", pre, streams.float()).bfloat16()

    def _experts(self, x: torch.Tensor, name: str, ids: torch.Tensor) -> torch.Tensor:
        gate = self.weights[f"{name}.gate.weight"].float()
        scores = softplus(linear(x.float(), gate)).sqrt()
        if f"{name}.gate.tid2eid" in self.weights:
            chosen = self.weights[f"{name}.gate.tid2eid"][ids].long()
        else:
            biased = scores + self.weights[f"{name}.gate.e_score_correction_bias"]
            chosen = biased.topk(self.config["num_experts_per_tok"], -1).indices
        shares = scores.gather(1, chosen)
        shares = shares / shares.sum(-1, keepdim=True)
        routed = torch.zeros_like(x, dtype=torch.float32)
        for expert in range(self.config["n_routed_experts"]):
            rows, places = (chosen == expert).nonzero(as_tuple=True)
            output = self._mlp(x[rows], f"{name}.experts.{expert}").float()
            routed[rows] += shares[rows, places].unsqueeze(1) * output
        return routed.bfloat16() + self._mlp(x, f"{name}.shared_experts")

    def _mlp(self, x: torch.Tensor, name: str) -> torch.Tensor:
        gate, up, down = (self.weights[f"{name}.{part}_proj.weight"] for part in
                          ("gate", "up", "down"))  # fmt: skip
        return linear(silu(linear(x, gate).float()).bfloat16() * linear(x, up), down)


@lru_cache(maxsize=2)
def load(directory: Path) -> Reference:
    """The model in ``directory``."""
    from safetensors.torch import load_file

    config = json.loads((directory / "config.json").read_text())
    return Reference(config, load_file(directory / "model.safetensors"))


@dataclass(frozen=True)
class DraftLayer:
    """Method ``mtp``: the layer that drafts (a ``speculation.Drafter``)."""

    checkpoint: Path

    def rows(self, context: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        """Logits after ``context`` and each of ``drafted``.

        Only as many positions are computed as its last query sees: it has a window alone.
        """
        model, first = load(self.checkpoint), max(0, len(context) - 1 - WINDOW)
        known = model.known_streams(context[:-1])[first:]
        matrix = model.weights[f"{DRAFT_LAYER}.head.weight"]
        rows = []
        with torch.inference_mode():
            for count in range(len(drafted) + 1):
                tokens = [*context[first + 1 :], *drafted[:count]]
                last = model.draft_streams(tokens, known, first)[-1:]
                rows.append(linear(model.draft_normed(last), matrix)[0].float())
                known = torch.cat((known, last))
        return torch.stack(rows)


def leave(
    x: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    """The streams behind a part of a layer whose output is ``x``."""
    mixed = torch.einsum("tij,tih->tjh", comb, streams.float())
    return (mixed + post.unsqueeze(2) * x.float().unsqueeze(1)).bfloat16()


def norm(x: torch.Tensor, weight: torch.Tensor | float) -> torch.Tensor:
    """RMS norm over the last axis, in bfloat16."""
    values = x.float()
    values = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + 1e-6)
    return (values * weight).bfloat16()


def rotated(x: torch.Tensor, positions: torch.Tensor, base: float) -> torch.Tensor:
    """``x`` (tokens, ..., D) with its last 64 features turned in pairs by ``positions``."""
    frequencies = base ** -(torch.arange(0, ROPE_SIZE, 2) / ROPE_SIZE)
    angles = positions.float().unsqueeze(1) * frequencies
    angles = angles.view(len(positions), *[1] * (x.dim() - 2), ROPE_SIZE // 2)
    plain, pairs = x.float().split([x.shape[-1] - ROPE_SIZE, ROPE_SIZE], -1)
    even, odd = pairs[..., ::2], pairs[..., 1::2]
    turned = torch.stack(
        (even * angles.cos() - odd * angles.sin(), odd * angles.cos() + even * angles.sin()), -1
    )
    return torch.cat((plain, turned.flatten(-2)), -1).bfloat16()


class Attention:
    """One layer's attention: to a window of keys, and to keys that stand for several tokens."""

    def __init__(
        self, weights: Weights, name: str, config: Mapping[str, Any], ratio: int, base: float
    ) -> None:
        self.weights, self.name, self.config = weights, name, config
        self.ratio, self.base = ratio, base

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return linear(x, self.weights[f"{self.name}.{name}.weight"])

    def __call__(self, x: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Of tokens at positions from ``first`` on, which is 0 where keys are compressed."""
        positions = torch.arange(len(x)) + first
        low = norm(self._linear(x, "wq_a"), self.weights[f"{self.name}.q_norm.weight"])
        query = norm(self._linear(low, "wq_b").unflatten(1, (HEADS, HEAD_SIZE)), 1.0)
        query = rotated(query, positions, self.base)
        keys = norm(self._linear(x, "wkv"), self.weights[f"{self.name}.kv_norm.weight"])
        keys = rotated(keys, positions, self.base)
        distance = positions.unsqueeze(1) - positions
        visible = (distance >= 0) & (distance < WINDOW)
        if self.ratio > 1:
            compressed = self._compressed(x, "compressor", HEAD_SIZE)
            keys = torch.cat((keys, compressed))
            visible = torch.cat((visible, self._chosen(x, low, len(compressed))), 1)
        sinks = self.weights[f"{self.name}.attn_sink"]
        output = attend(query, keys, visible, sinks)
        return self._project(rotated(output, -positions, self.base))

    def _project(self, output: torch.Tensor) -> torch.Tensor:
        groups = self.config["o_groups"]
        grouped = output.reshape(len(output), groups, -1)
        weight = self.weights[f"{self.name}.wo_a.weight"].view(groups, -1, grouped.shape[-1])
        low = torch.bmm(grouped.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)
        return self._linear(low.flatten(1), "wo_b")

    def _compressed(self, x: torch.Tensor, name: str, size: int) -> torch.Tensor:
        """One key for each whole group of tokens: a mean weighted feature by feature."""
        name = f"{self.name}.{name}"
        count = len(x) // self.ratio
        parts = []
        for matrix in ("wkv", "wgate"):
            projected = linear(x.float(), self.weights[f"{name}.{matrix}.weight"].float())
            parts.append(projected[: count * self.ratio].unflatten(0, (count, self.ratio)))
        keys, scores = parts[0], parts[1] + self.weights[f"{name}.ape"]
        if keys.shape[-1] == 2 * size:
            # Of a group the second features, of the group before it the first.
            keys, scores = (
                torch.cat((pad(part[:-1, :, :size], (0, 0, 0, 0, 1, 0), value=empty),
                           part[:, :, size:]), 1)
                for part, empty in ((keys, 0.0), (scores, float("-inf")))
            )  # fmt: skip
        mean = (scores.softmax(1) * keys).sum(1)
        mean = mean * torch.rsqrt(mean.square().mean(-1, keepdim=True) + 1e-6)
        mean = mean * self.weights[f"{name}.norm.weight"].float()
        return rotated(mean, torch.arange(count) * self.ratio, self.base)

    def _chosen(self, x: torch.Tensor, low: torch.Tensor, count: int) -> torch.Tensor:
        """Which compressed keys each token sees: whole ones, of those of 4 the best."""
        ends = torch.arange(len(x)) + 1
        whole = torch.arange(count) < (ends // self.ratio).unsqueeze(1)
        if self.ratio != 4:
            return whole
        query = self._linear(low, "indexer.wq_b").unflatten(1, (INDEX_HEADS, INDEX_SIZE))
        query = in_8_bits(turned_by_signs(rotated(query, torch.arange(len(x)), self.base)))
        keys = self._compressed(x, "indexer.compressor", INDEX_SIZE)
        keys = in_8_bits(turned_by_signs(keys))
        weights = self._linear(x, "indexer.weights_proj") * (INDEX_SIZE * INDEX_HEADS) ** -0.5
        scores = torch.einsum("thd,kd->thk", query, keys).relu()
        scores = torch.einsum("thk,th->tk", scores, weights.half().float())
        best = scores.masked_fill(~whole, float("-inf")).topk(
            min(count, self.config["index_topk"]), -1
        )
        return whole & torch.zeros_like(whole).scatter_(1, best.indices, True)


def attend(
    query: torch.Tensor, keys: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
) -> torch.Tensor:
    """Attention of ``[tokens, heads, D]`` to ``[keys, D]``, which are their own values."""
    scores = torch.einsum("thd,kd->htk", query.float(), keys.float()) * HEAD_SIZE**-0.5
    scores = scores.masked_fill(~visible, float("-inf"))
    scores = torch.cat((scores, sinks.view(-1, 1, 1).expand(-1, len(query), 1)), 2)
    return torch.einsum("htk,kd->thd", scores.softmax(-1)[..., :-1], keys.float()).bfloat16()


def turned_by_signs(x: torch.Tensor) -> torch.Tensor:
    """``x`` times the Hadamard matrix of its width, divided by the root of the width."""
    matrix = torch.ones(1, 1)
    while len(matrix) < x.shape[-1]:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return linear(x, matrix.bfloat16()) * x.shape[-1] ** -0.5


def in_8_bits(x: torch.Tensor) -> torch.Tensor:
    """``x`` as 8-bit integers times a scale in 16 bits for each row, in float32."""
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return (x.float() / scale).round() * scale.half().float()
