# SPDX-License-Identifier: Apache-2.0
"""Commands drawn at random: a target, a draft, options; published numbers and such as nobody has.

A seed and a number give the same command again.
"""

from __future__ import annotations

import functools
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.mistaken_models import CHANGED

REPOSITORY = Path(__file__).resolve().parents[1]
CONFIGS = REPOSITORY / "tests" / "data" / "configs"
RECIPES = REPOSITORY / "docs" / "recipes" / "recipes.json"

METHODS = ("draft_model", "eagle", "eagle3", "mtp", "dflash", "ngram", "suffix", None, "dspark")
TOKENS = (1, 1, 2, 3, 3, 4, 5, 7, 8, 15, 16, 17, 64, 1000, 10**9)
SIZES = (0, 1, 2, 3, 5, 7, 16, 24, 63, 64, 65, 72, 80, 96, 112, 127, 128, 160, 192, 255, 256, 257)
TAME = (1, 2, 8, 16, 32, 64, 96, 128, 192, 256, 512)
HUGE = (512, 513, 576, 1024, 4096, 65536, 131072, 2**31, 10**12)
WRONG: tuple[Any, ...] = (-1, -128, None, "128", "", 1.5, True, [], [1, 2], {}, float("inf"))
"""Values of a wrong type or sign."""
NUMBERS = (
    "head_dim",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "max_position_embeddings",
    "vocab_size",
    "sliding_window",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "index_head_dim",
    "index_topk",
    "global_head_dim",
    "num_global_key_value_heads",
    "num_kv_shared_layers",
    "num_nextn_predict_layers",
    "full_attention_interval",
    "layers_block_type",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "conv_L_cache",
    "mamba_n_heads",
    "mamba_d_head",
    "mamba_d_state",
    "mamba_d_conv",
)
LAYERS = (0, 1, 1, 2, 3, 5, 17, 61, 128, 1000)
TYPES = ("full_attention", "sliding_attention", "linear_attention", "conv", "attention", "else")


@dataclass(frozen=True)
class Drawn:
    """``target``, ``draft``: of config.json. ``words``: of the command, ``T`` and ``D`` the models.

    ``devices``, ``memory``: of the machine, in bytes.
    """

    number: int
    target: dict[str, Any]
    draft: dict[str, Any] | None
    words: tuple[str, ...]
    devices: int
    memory: int
    runner: str

    def command(self, folder: Path) -> list[str]:
        """Write both models into ``folder``; returns the words with their folders."""
        folders = {"T": str(folder / "T"), "D": str(folder / "D")}
        for name, config in (("T", self.target), ("D", self.draft)):
            if config is not None:
                Path(folders[name]).mkdir(parents=True)
                Path(folders[name], "config.json").write_text(json.dumps(config), encoding="utf-8")
        words = list(self.words)
        words[2] = folders["T"]
        return [word.replace('"D"', json.dumps(folders["D"])) for word in words]


@functools.cache
def published() -> dict[str, dict[str, Any]]:
    """Name -> numbers: of tests, of recipes, and of the mistakes that tests make."""
    found = {
        path.parent.name: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(CONFIGS.glob("*/config.json"))
    }
    for name, (base, changes) in sorted(CHANGED.items()):
        found[name] = {**found[base], **changes}
    found.update(json.loads(RECIPES.read_text(encoding="utf-8"))["models"])
    return found


def draw(seed: int, number: int, runners: tuple[str, ...]) -> Drawn:
    """The command of this number; half of them are tame: most of what is drawn can be served."""
    chance = random.Random(f"{seed} {number}")
    tame = chance.random() < 0.5
    models = published()
    names = list(models)
    target = models[chance.choice(names)]
    method = chance.choice(METHODS[:5] if tame else METHODS)
    draft = models[chance.choice(names)] if method not in ("ngram", "suffix", "mtp") else None
    if draft is not None and (tame or chance.random() < 0.7):
        # Otherwise nearly all are refused for their vocabularies and sizes.
        same = ("vocab_size", "hidden_size") if "eagle" in str(method) else ("vocab_size",)
        draft = {**draft, **{name: target[name] for name in same if name in target}}
    if draft is not None and chance.random() < 0.4:
        draft = {**draft, "num_hidden_layers": chance.choice((1, 2, 3))}
    if chance.random() < (0.3 if tame else 0.8):
        target = _changed(target, chance, tame)
        draft = None if draft is None else _changed(draft, chance, tame)
    words = ["vllm", "serve", "T", *_options(chance, tame)]
    if chance.random() < 0.9:
        speculation = _speculation(method, draft, chance, tame)
        # By a chance of its own, so that all else of a number stays as it was.
        if random.Random(f"misspelt {seed} {number}").random() < 0.02:
            speculation["num_speculative_token"] = speculation.pop("num_speculative_tokens")
        words += ["--speculative-config", json.dumps(speculation)]
    if chance.random() < 0.5:
        words += ["--additional-config", json.dumps({"mkv_ascend": _ours(chance, tame)})]
    return Drawn(
        number,
        target,
        draft,
        tuple(words),
        16 if tame else chance.choice((1, 2, 8, 16)),
        2**40 if tame else chance.choice((2**20, 2**28, 2**30, 2**33, 2**36, 2**40)),
        chance.choice(runners),
    )


def _changed(config: dict[str, Any], chance: random.Random, tame: bool) -> dict[str, Any]:
    """With some numbers that nobody published."""
    inner = config.get("text_config")
    if isinstance(inner, dict) and chance.random() < 0.8:
        return {**config, "text_config": _with_numbers(inner, chance, tame)}
    return _with_numbers(config, chance, tame)


def _with_numbers(config: dict[str, Any], chance: random.Random, tame: bool) -> dict[str, Any]:
    changed = dict(config)
    present = [name for name in NUMBERS if name in config] or list(NUMBERS)
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(present if chance.random() < 0.9 else NUMBERS)
        drawn = chance.random()
        values = TAME if tame else SIZES if drawn < 0.75 else HUGE if drawn < 0.92 else WRONG
        changed[name] = chance.choice(values)
    if chance.random() < 0.3:
        layers = chance.choice(LAYERS)
        changed["num_hidden_layers"] = layers
        if "layer_types" in config:
            types = TYPES[:2] if chance.random() < 0.7 else TYPES
            changed["layer_types"] = [
                chance.choice(types) for _ in range(layers + chance.choice((0, 0, 0, -1, 1)))
            ]
    return changed


LIKELY = {"--max-model-len": 0.6, "--tensor-parallel-size": 0.5}
OPTIONS: dict[str, tuple[Any, ...]] = {
    "--max-model-len": (4096, 32768, 131072, 1, 2, 127, 128, 129, 1000, 10**7, 2**40),
    "--block-size": (128, 256, 512, 1024, 16, 100, 0, -128, 2**20),
    "--tensor-parallel-size": (1, 2, 4, 8, 16, 3),
    "--data-parallel-size": (1, 2),
    "--max-num-batched-tokens": (8192, 65536, 16384, 1, 100, 10**9),
    "--max-num-seqs": (8, 64, 1, 256, 10**6),
    "--gpu-memory-utilization": (0.5, 0.9, 0.01, 1.0, 2.0),
    "--num-gpu-blocks-override": (10**6, 100, 1, 2),
    "--dtype": ("auto", "bfloat16", "float16", "float32"),
    "--kv-cache-dtype": ("auto", "auto", "bfloat16", "fp8", "int8"),
    "--mamba-cache-mode": ("none", "align", "all"),
    "--mamba-ssm-cache-dtype": ("auto", "float32"),
    "--attention-backend": ("CUSTOM", "FLASH_ATTN"),
}
"""The first ones are such as can be served."""
FLAGS = (
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
    "--enforce-eager",
    "--async-scheduling",
    "--disable-hybrid-kv-cache-manager",
)


def _options(chance: random.Random, tame: bool) -> list[str]:
    words = []
    for name, values in OPTIONS.items():
        if chance.random() < LIKELY.get(name, 0.12):
            words += [name, str(chance.choice(values[:2] if tame else values))]
    return words + [flag for flag in FLAGS if chance.random() < 0.1]


def _speculation(
    method: str | None, draft: dict[str, Any] | None, chance: random.Random, tame: bool
) -> dict[str, Any]:
    found: dict[str, Any] = {"num_speculative_tokens": chance.choice(TOKENS[: 9 if tame else None])}
    if method is not None:
        found["method"] = method
    if draft is not None:
        found["model"] = "D"
    if not tame and chance.random() < 0.2:
        found["draft_tensor_parallel_size"] = chance.choice((1, 2, 8))
    if chance.random() < 0.05:
        found["parallel_drafting"] = True
    if chance.random() < 0.05:
        found["enforce_eager"] = True
    return found


def _ours(chance: random.Random, tame: bool) -> dict[str, Any]:
    """Options of ours; some of them at, and some beyond, their bounds."""
    backends = ("fused_infer_attention", "flash_attention_3", "mla", "sparse_mla", "auto")
    # The last ones are refused.
    parts: dict[str, dict[str, Any]] = {
        "layout": {
            "objective": ("balanced", "fewest_groups", "least_memory"),
            "max_padding_fraction": (0, 0.0, 0.01, 0.2, 1),
            "max_block_size": (128, 256, 1024, 4096, 2**20, 100),
        },
        "attention": {"target": backends, "draft": backends},
        "drafting": {"window": (2, 100, 128, 4096, 2**31 - 1, 1)},
        "kv_cache": {"draft_dtype": ("bfloat16", "float16", "auto")},
    }
    found: dict[str, Any] = {}
    for part, choices in parts.items():
        likely = 0.0 if tame and part == "attention" else 0.4
        if chance.random() < likely:
            keys = [key for key in choices if chance.random() < 0.7]
            found[part] = {key: chance.choice(choices[key][: -1 if tame else None]) for key in keys}
    return found
