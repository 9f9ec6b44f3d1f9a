# SPDX-License-Identifier: Apache-2.0
"""A small DeepSeek-V4: random layers, and output matrices that are fitted to text.

Training such a model through would take many minutes, for its heads and its hidden size cannot be
small: sizes are the least that the operators document, 64 heads of 512 and a hidden size of 1024.
But random layers already tell contexts apart, so it is enough to fit what reads them: the output
matrix, and the one of the layer that drafts (MTP), by a regression each. So its text is real enough
for drafts to be accepted, and as one key less changes what the layers say, its tokens still tell.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy, linear

from tests.support.deepseek_v4 import (
    DRAFT_LAYER,
    HEAD_SIZE,
    HEADS,
    INDEX_HEADS,
    INDEX_SIZE,
    ROPE_SIZE,
    WINDOW,
    Reference,
)
from tests.support.tiny_models.batches import deck_line, text_row
from tests.support.tiny_models.tokenizer import BOS_TOKEN_ID

if TYPE_CHECKING:
    from tests.support.tiny_models.corpus import Corpus
    from tests.support.tiny_models.recipe import FittedRecipe

CONFIGURATION: Mapping[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "dtype": "bfloat16",
    "vocab_size": 264,
    "tie_word_embeddings": False,
    "hidden_size": 1024,
    "num_hidden_layers": 3,
    # One more layer drafts; it has a window alone.
    "num_nextn_predict_layers": 1,
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

KEY_GAIN = 3.0
"""Size of keys, which are values too. With keys of size 1 a head takes the mean of dozens of keys,
and one key less changes less than the rounding to 16 bits does."""

EXPERT_GAIN = 0.1
"""Size of what experts that are chosen say. Rounding to 16 bits decides between two that are nearly
as good, and then all that follows would be another model's."""

Weights = Mapping[str, torch.Tensor]


class WeightMaker:
    """Random weights by name; the same for the same seed and order of calls, on every machine.

    So they need not be kept. Drawn as whole numbers: what functions round differs by processor.
    """

    def __init__(self, seed: int) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        """Keeps the size of what it multiplies, times ``gain``."""
        values = self._draw(rows, columns)
        self.weights[f"{name}.weight"] = (values * (gain / math.sqrt(columns))).bfloat16()

    def norm(self, name: str, size: int, gain: float = 1.0) -> None:
        values = gain * (1 + 0.1 * self._draw(size))
        self.weights[f"{name}.weight"] = values.bfloat16()

    def single(self, name: str, *shape: int, spread: float = 1.0) -> None:
        """A parameter in float32."""
        self.weights[name] = self._draw(*shape) * spread

    def _draw(self, *shape: int) -> torch.Tensor:
        """Numbers of a uniform distribution of mean 0 and variance 1."""
        whole = torch.randint(-(2**23), 2**23, shape, generator=self._generator)
        return whole.float() * (math.sqrt(3) / 2**23)

    def streams(self, name: str, mixes: int, width: int) -> None:
        """How residual streams are mixed; ``mixes`` numbers for each token."""
        self.single(f"{name}_fn", mixes, width, spread=1 / math.sqrt(width))
        self.single(f"{name}_base", mixes)

    def compressor(self, name: str, ratio: int, size: int, hidden: int, gain: float = 1.0) -> None:
        width = size * (2 if ratio == 4 else 1)
        self.single(f"{name}.ape", ratio, width, spread=0.5)
        self.matrix(f"{name}.wkv", width, hidden)
        self.matrix(f"{name}.wgate", width, hidden)
        self.norm(f"{name}.norm", size, gain)

    def experts(self, name: str, count: int, size: int, hidden: int) -> None:
        gains = {f"experts.{expert}": EXPERT_GAIN for expert in range(count)}
        for expert, gain in {**gains, "shared_experts": 1.0}.items():
            self.matrix(f"{name}.{expert}.gate_proj", size, hidden)
            self.matrix(f"{name}.{expert}.up_proj", size, hidden)
            self.matrix(f"{name}.{expert}.down_proj", hidden, size, gain)

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
        by_token = index < config["num_hash_layers"]
        _make_layer(make, f"model.layers.{index}", ratio, by_token, config)
    _make_draft_layer(make, config)
    return make.weights


def _make_layer(
    make: WeightMaker, name: str, ratio: int, by_token: bool, config: Mapping[str, Any]
) -> None:
    hidden, streams = config["hidden_size"], config["hc_mult"]
    make.norm(f"{name}.input_layernorm", hidden)
    make.norm(f"{name}.post_attention_layernorm", hidden)
    for part in ("attn", "ffn"):
        make.streams(f"{name}.hc_{part}", (2 + streams) * streams, streams * hidden)
        make.single(f"{name}.hc_{part}_scale", 3)
    _make_attention(make, f"{name}.self_attn", ratio, config)
    count, size = config["n_routed_experts"], config["moe_intermediate_size"]
    make.matrix(f"{name}.mlp.gate", count, hidden)
    if by_token:
        table = f"{name}.mlp.gate.tid2eid"
        make.tokens_experts(table, config["vocab_size"], count, config["num_experts_per_tok"])
    else:
        make.single(f"{name}.mlp.gate.e_score_correction_bias", count, spread=0.1)
    make.experts(f"{name}.mlp", count, size, hidden)


def _make_draft_layer(make: WeightMaker, config: Mapping[str, Any]) -> None:
    """The layer that drafts, by the names that vllm-ascend loads it by, with its own embedding."""
    hidden, streams, name = config["hidden_size"], config["hc_mult"], DRAFT_LAYER
    for part in ("enorm", "hnorm", "norm"):
        make.norm(f"{name}.{part}", hidden)
    for part in ("e_proj", "h_proj"):
        make.matrix(f"{name}.{part}", hidden, hidden)
    make.streams(f"{name}.hc_head", streams, streams * hidden)
    make.single(f"{name}.hc_head_scale", 1)
    _make_layer(make, name, 0, False, config)
    make.weights[f"{name}.emb.tok_emb.weight"] = make.weights["model.embed_tokens.weight"].clone()


def _make_attention(make: WeightMaker, name: str, ratio: int, config: Mapping[str, Any]) -> None:
    hidden, query, output = (config[key] for key in ("hidden_size", "q_lora_rank", "o_lora_rank"))
    groups = config["o_groups"]
    make.matrix(f"{name}.wq_a", query, hidden)
    make.norm(f"{name}.q_norm", query)
    make.matrix(f"{name}.wq_b", HEADS * HEAD_SIZE, query)
    make.matrix(f"{name}.wkv", HEAD_SIZE, hidden)
    make.norm(f"{name}.kv_norm", HEAD_SIZE, KEY_GAIN)
    make.matrix(f"{name}.wo_a", groups * output, HEADS * HEAD_SIZE // groups)
    make.matrix(f"{name}.wo_b", hidden, groups * output, gain=2.0)
    make.single(f"{name}.attn_sink", HEADS)
    if ratio > 1:
        make.compressor(f"{name}.compressor", ratio, HEAD_SIZE, hidden, KEY_GAIN)
    if ratio == 4:
        make.matrix(f"{name}.indexer.wq_b", INDEX_HEADS * INDEX_SIZE, query)
        make.matrix(f"{name}.indexer.weights_proj", INDEX_HEADS, hidden)
        make.compressor(f"{name}.indexer.compressor", ratio, INDEX_SIZE, hidden)


def make(recipe: FittedRecipe, corpus: Corpus, path: Path) -> None:
    """Write the checkpoint into the folder ``path``: random layers, fitted output matrices."""
    from safetensors.torch import save_file

    weights = make_weights(CONFIGURATION, recipe.seed)
    weights |= fitted_outputs(Reference(CONFIGURATION, weights), rows_of(recipe, corpus), recipe)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(dict(CONFIGURATION), indent=2) + "\n")


def rows_of(recipe: FittedRecipe, corpus: Corpus) -> list[list[int]]:
    """Rows of token ids to fit to: text, and decks (see ``batches``)."""
    generator, text = random.Random(recipe.seed), b"".join(corpus.training)
    rows = [text_row(generator, text, recipe.length) for _ in range(recipe.rows)]
    return rows + [[BOS_TOKEN_ID, *deck_line(generator)] for _ in range(recipe.decks)]


def fitted_outputs(
    model: Reference, rows: Sequence[Sequence[int]], recipe: FittedRecipe
) -> dict[str, torch.Tensor]:
    """The target's output matrix, fitted to ``rows``, and the drafting layer's, fitted to what the
    target then says."""
    with torch.inference_mode():
        streams = [model.streams(row) for row in rows]
        seen = torch.cat([model.normed(known)[:-1] for known in streams]).float()
        drafted = torch.cat(
            [
                model.draft_normed(model.draft_streams(row[1:], known[:-1]))[:-1]
                for row, known in zip(rows, streams, strict=True)
            ]
        ).float()
    following = torch.cat([torch.tensor(row[1:]) for row in rows])
    output = fitted(seen, following, recipe)
    with torch.inference_mode():
        # Behind the token at i + 1, which the drafting layer is given at position i.
        said = [linear(model.normed(known)[1:-1].float(), output).argmax(-1) for known in streams]
    draft = fitted(drafted, torch.cat(said), recipe)
    return {
        "lm_head.weight": output.bfloat16(),
        f"{DRAFT_LAYER}.head.weight": draft.bfloat16(),
    }


def fitted(states: torch.Tensor, tokens: torch.Tensor, recipe: FittedRecipe) -> torch.Tensor:
    """Output matrix float32 ``[vocabulary, width]`` of the regression of ``tokens`` on ``states``.

    The logits spread by 1, as those of a random matrix do: what 16 bits leave undecided is then as
    much of them.
    """
    matrix = torch.zeros(CONFIGURATION["vocab_size"], states.shape[1], requires_grad=True)
    search = torch.optim.LBFGS([matrix], max_iter=recipe.iterations, line_search_fn="strong_wolfe")
    decay = recipe.decay / (2 * len(states))
    # Copies, for what was made in inference mode takes no part in a search.
    states, tokens = states.clone(), tokens.clone()

    def loss() -> torch.Tensor:
        search.zero_grad()
        value = cross_entropy(linear(states, matrix), tokens) + decay * matrix.square().sum()
        value.backward()
        return value

    search.step(loss)
    result = matrix.detach()
    return result / linear(states, result).std(-1).mean()
