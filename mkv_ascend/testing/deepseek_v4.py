# SPDX-License-Identifier: Apache-2.0
"""A small DeepSeek-V4 with random weights, and its logits in plain torch.

Transformers (5.5.4) does not have the family, so there is nobody else's model to judge engines by:
this one is written from the formulas of DeepSeek-V4's published inference code as vLLM documents
them, over whole sequences and without any cache. It rounds where the model does, to bfloat16 behind
each module and to 8 bits in the indexer, because vllm-ascend runs the family in bfloat16 only.

Sizes are the smallest that the operators document: 64 heads of 512, a hidden size of 1024.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear, pad, silu, softplus

HEADS, HEAD_SIZE, ROPE_SIZE = 64, 512, 64
INDEX_HEADS, INDEX_SIZE = 64, 128
WINDOW = 128
POST_FACTOR = 2.0

CONFIGURATION: Mapping[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "dtype": "bfloat16",
    "vocab_size": 264,
    "tie_word_embeddings": False,
    "hidden_size": 1024,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "head_dim": HEAD_SIZE,
    "qk_rope_head_dim": ROPE_SIZE,
    "q_lora_rank": 64,
    "o_lora_rank": 32,
    "o_groups": 8,
    "sliding_window": WINDOW,
    # One layer of each kind: a window alone, with chosen keys of 4 tokens, with all keys of 128.
    "compress_ratios": [0, 4, 128],
    "index_n_heads": INDEX_HEADS,
    "index_head_dim": INDEX_SIZE,
    "index_topk": 512,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    # The first layer chooses experts by the token.
    "num_hash_layers": 1,
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "factor": 1,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 1024,
    },
}

Weights = Mapping[str, torch.Tensor]


class WeightMaker:
    """Random weights by name; the same for the same seed and order of calls."""

    def __init__(self, seed: int) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        """Keeps the size of what it multiplies, times ``gain``."""
        values = torch.randn(rows, columns, generator=self._generator)
        self.weights[f"{name}.weight"] = (values * gain * columns**-0.5).bfloat16()

    def norm(self, name: str, size: int) -> None:
        values = 1 + 0.1 * torch.randn(size, generator=self._generator)
        self.weights[f"{name}.weight"] = values.bfloat16()

    def single(self, name: str, *shape: int, spread: float = 1.0) -> None:
        """A parameter in float32."""
        self.weights[name] = torch.randn(*shape, generator=self._generator) * spread

    def streams(self, name: str, mixes: int, width: int) -> None:
        """How residual streams are mixed; ``mixes`` numbers for each token."""
        self.single(f"{name}_fn", mixes, width, spread=width**-0.5)
        self.single(f"{name}_base", mixes)

    def compressor(self, name: str, ratio: int, size: int, hidden: int) -> None:
        width = size * (2 if ratio == 4 else 1)
        self.single(f"{name}.ape", ratio, width, spread=0.5)
        self.matrix(f"{name}.wkv", width, hidden)
        self.matrix(f"{name}.wgate", width, hidden)
        self.norm(f"{name}.norm", size)

    def experts(self, name: str, experts: Sequence[str], size: int, hidden: int) -> None:
        for expert in experts:
            self.matrix(f"{name}.{expert}.gate_proj", size, hidden)
            self.matrix(f"{name}.{expert}.up_proj", size, hidden)
            self.matrix(f"{name}.{expert}.down_proj", hidden, size)

    def tokens_experts(self, name: str, vocabulary: int, experts: int, chosen: int) -> None:
        rows = [torch.randperm(experts, generator=self._generator) for _ in range(vocabulary)]
        self.weights[name] = torch.stack(rows)[:, :chosen].to(torch.int32)


def make_weights(config: Mapping[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, by the names that vllm-ascend loads."""
    make, hidden, streams = WeightMaker(seed), config["hidden_size"], config["hc_mult"]
    # Rows of the size of a residual stream.
    make.matrix("model.embed_tokens", config["vocab_size"], hidden, gain=hidden**0.5)
    make.matrix("lm_head", config["vocab_size"], hidden)
    make.norm("model.norm", hidden)
    make.streams("model.hc_head", streams, streams * hidden)
    make.single("model.hc_head_scale", 1)
    for index, ratio in enumerate(config["compress_ratios"]):
        name = f"model.layers.{index}"
        make.norm(f"{name}.input_layernorm", hidden)
        make.norm(f"{name}.post_attention_layernorm", hidden)
        for part in ("attn", "ffn"):
            make.streams(f"{name}.hc_{part}", (2 + streams) * streams, streams * hidden)
            make.single(f"{name}.hc_{part}_scale", 3)
        _make_attention(make, f"{name}.self_attn", ratio, config)
        count, size = config["n_routed_experts"], config["moe_intermediate_size"]
        make.matrix(f"{name}.mlp.gate", count, hidden)
        if index < config["num_hash_layers"]:
            table = f"{name}.mlp.gate.tid2eid"
            make.tokens_experts(table, config["vocab_size"], count, config["num_experts_per_tok"])
        else:
            make.single(f"{name}.mlp.gate.e_score_correction_bias", count, spread=0.1)
        routed = [f"experts.{expert}" for expert in range(count)]
        make.experts(f"{name}.mlp", [*routed, "shared_experts"], size, hidden)
    return make.weights


def _make_attention(make: WeightMaker, name: str, ratio: int, config: Mapping[str, Any]) -> None:
    hidden, query, output = (config[key] for key in ("hidden_size", "q_lora_rank", "o_lora_rank"))
    groups = config["o_groups"]
    make.matrix(f"{name}.wq_a", query, hidden)
    make.norm(f"{name}.q_norm", query)
    make.matrix(f"{name}.wq_b", HEADS * HEAD_SIZE, query)
    make.matrix(f"{name}.wkv", HEAD_SIZE, hidden)
    make.norm(f"{name}.kv_norm", HEAD_SIZE)
    make.matrix(f"{name}.wo_a", groups * output, HEADS * HEAD_SIZE // groups)
    make.matrix(f"{name}.wo_b", hidden, groups * output, gain=2.0)
    make.single(f"{name}.attn_sink", HEADS)
    if ratio > 1:
        make.compressor(f"{name}.compressor", ratio, HEAD_SIZE, hidden)
    if ratio == 4:
        make.matrix(f"{name}.indexer.wq_b", INDEX_HEADS * INDEX_SIZE, query)
        make.matrix(f"{name}.indexer.weights_proj", INDEX_HEADS, hidden)
        make.compressor(f"{name}.indexer.compressor", ratio, INDEX_SIZE, hidden)


def model_directory(seed: int = 0) -> Path:
    """Folder of the checkpoint, written now if it is not there yet."""
    from safetensors.torch import save_file

    from mkv_ascend.testing.tiny_models import store

    content = json.dumps([dict(CONFIGURATION), seed, torch.__version__])
    digest = hashlib.sha256(content.encode() + Path(__file__).read_bytes()).hexdigest()[:12]
    path = store.default_directory() / f"deepseek_v4-{digest}"
    with store.locked(path):
        if not store.is_complete(path):
            with store.written_whole(path) as aside:
                weights = make_weights(CONFIGURATION, seed)
                save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
                (aside / "config.json").write_text(json.dumps(dict(CONFIGURATION), indent=2))
                (aside / store.DESCRIPTION_FILE).write_text(json.dumps({"name": "deepseek_v4"}))
    return path


class Reference:
    """The model in ``directory`` over whole sequences, on the host."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        from safetensors.torch import load_file

        self.config = {**json.loads((directory / "config.json").read_text()), **changes}
        self.weights: Weights = load_file(directory / "model.safetensors")

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits after each token, float32 ``[len(tokens), vocabulary]``."""
        ids = torch.tensor(list(tokens))
        with torch.inference_mode():
            streams = self.weights["model.embed_tokens.weight"][ids]
            streams = streams.unsqueeze(1).repeat(1, self.config["hc_mult"], 1)
            for index in range(self.config["num_hidden_layers"]):
                streams = self._layer(index, streams, ids)
            hidden = norm(self._head(streams), self.weights["model.norm.weight"])
            return linear(hidden, self.weights["lm_head.weight"]).float()

    def _layer(self, index: int, streams: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        name = f"model.layers.{index}"
        x, post, comb = self._enter(streams, f"{name}.hc_attn")
        x = norm(x, self.weights[f"{name}.input_layernorm.weight"])
        ratio = self.config["compress_ratios"][index]
        base = self.config["compress_rope_theta" if ratio > 1 else "rope_theta"]
        attended = Attention(self.weights, f"{name}.self_attn", self.config, ratio, base)(x)
        streams = leave(attended, streams, post, comb)
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

    def _head(self, streams: torch.Tensor) -> torch.Tensor:
        mixes = self._mixes(streams, "model.hc_head") * self.weights["model.hc_head_scale"]
        pre = torch.sigmoid(mixes + self.weights["model.hc_head_base"]) + self.config["hc_eps"]
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

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(len(x))
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
