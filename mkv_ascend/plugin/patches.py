# SPDX-License-Identifier: Apache-2.0
"""Every place where code of vLLM or vllm-ascend is replaced: what, why, guard, test, until when.

A subclass or an official hook is always tried first; what is listed here had neither. Each patch
checks before it acts that the code it replaces still looks as it did (its guard), refuses to
start otherwise, and may be applied twice. ``python -m mkv_ascend.plugin.patches`` prints the
inventory of docs/patches.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Patch:
    """One replacement of foreign code."""

    name: str
    target: str
    why: str
    guard: str
    test: str
    until: str
    apply: Callable[[], None] | None = None
    """Applies it in a worker process; None when the code named in ``guard`` applies it."""


def _choose_backends_per_layer() -> None:
    from mkv_ascend.plugin import layers

    layers.install()


PATCHES = (
    Patch(
        name="vllm-ascend's platform stands aside",
        target="vllm_ascend.register (code object)",
        why="vLLM accepts one out-of-tree platform; with both installed it would refuse to start.",
        guard="register is a plain function without free variables (plugin/entry.py)",
        test="tests/emulated/test_seat.py",
        until="vLLM lets one platform plugin build on another",
    ),
    Patch(
        name="backend per layer",
        target="vllm Attention.__init__ and MLAAttention.__init__",
        why="The platform's method that chooses a backend is told no layer, and its answer is "
        "cached for all of them. Both constructors take attn_backend; models do not pass it.",
        guard="both constructors have the parameters attn_backend and prefix",
        test="tests/emulated/test_backend_choice.py",
        until="vLLM passes the layer to Platform.get_attn_backend_cls or has "
        "attention_config.backend_per_kind",
        apply=_choose_backends_per_layer,
    ),
    Patch(
        name="window bound",
        target="AscendAttentionBackendImpl.sliding_window (attribute of each instance)",
        why="A sliding window of W keeps the query's own key and the W - 1 before it. vllm-ascend "
        "passes W as pre_tokens to fused_infer_attention_score, whose documented bound and "
        "golden test keep pre_tokens + 1 keys: one too many. W - 1 is passed instead. "
        "attention.window_bound = 'vllm_ascend' leaves W.",
        guard="the implementation holds the layer's window in sliding_window (plugin/layers.py)",
        test="tests/emulated/test_models.py (gemma3, gpt_oss)",
        until="vllm-ascend passes sliding_window - 1, or hardware shows an exclusive bound",
    ),
    Patch(
        name="model runner of the worker",
        target="vllm_ascend.worker.worker.NPUModelRunner (during init_device)",
        why="NPUWorker.init_device names the runner's class by a global of its module.",
        guard="the module has that global (guards.replaced)",
        test="tests/emulated/test_seat.py",
        until="NPUWorker takes the runner's class from an overridable method",
    ),
    Patch(
        name="AscendConfig stays the target's",
        target="vllm_ascend.ascend_config._ASCEND_CONFIG (put back after the draft is built)",
        why="Building the draft's configuration makes the process-wide AscendConfig the draft's, "
        "for both models.",
        guard="the module has that global (drafting/draft_config.py)",
        test="tests/emulated/test_draft_isolation.py",
        until="vllm-ascend keeps one AscendConfig per VllmConfig",
    ),
    Patch(
        name="rotary tables per model",
        target="vllm_ascend.ops.rotary_embedding (module globals, while a draft is built and "
        "while its metadata builders work)",
        why="The tables are one set per process: a draft with another rotary base spoils the "
        "target's or gets them.",
        guard="the module has all nine globals (attention/rope_tables.py)",
        test="tests/emulated/test_draft_isolation.py",
        until="vllm-ascend keeps rotary tables per model",
    ),
    Patch(
        name="KV groups of target and draft",
        target="vllm.v1.core.kv_cache_utils: get_kv_cache_groups, _pool_bytes_per_block, "
        "_get_kv_cache_config_deepseek_v4, _max_memory_usage_bytes_from_groups, "
        "_check_enough_kv_cache_memory, get_max_concurrency_for_kv_cache_config",
        why="vLLM's grouping wants one page size: it refuses pairs (MLA with a window draft) or "
        "splits all groups to single layers. Groups of unlike pages then need their own counting "
        "of blocks, memory and concurrency. The memory check lets start engines that have no "
        "block for vLLM's own null block, whose first long request waits for ever.",
        guard="the functions have the parameters that plugin/engine_core.py names; each hands over "
        "to the original unless target and draft need several groups of kinds that are planned",
        test="tests/emulated/test_layout_engines.py, tests/emulated/test_layout_groups.py",
        until="vLLM groups layers of unlike pages, or the grouping is a hook of the platform",
    ),
    Patch(
        name="dense layers beside MLA",
        target="vllm Attention.get_kv_cache_spec",
        why="A dense layer with a sliding window refuses when the model has MLA, and is asked "
        "about the target's configuration also where it is the draft's.",
        guard="the method takes self and vllm_config (plugin/dense_specs.py)",
        test="tests/emulated/test_layout_engines.py",
        until="vLLM asks the layer, or hands over the draft's configuration",
    ),
)


def apply_in_worker() -> None:
    """Apply every patch that a worker process needs before a model is built. Idempotent."""
    for patch in PATCHES:
        if patch.apply is not None:
            patch.apply()


def markdown() -> str:
    """The inventory as Markdown, one section per patch."""
    parts = []
    for patch in PATCHES:
        rows = [
            ("Replaces", patch.target),
            ("Why", patch.why),
            ("Guard", patch.guard),
            ("Test", f"`{patch.test}`"),
            ("Can go when", patch.until),
        ]
        lines = [f"- **{title}**: {text}" for title, text in rows]
        parts.append(f"## {patch.name}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(markdown())
