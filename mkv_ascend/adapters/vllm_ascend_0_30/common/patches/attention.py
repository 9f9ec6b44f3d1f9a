# SPDX-License-Identifier: Apache-2.0
"""Attention: keys and windows of drafts of mask tokens, and numbers of chosen keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch_npu
from vllm_ascend.ascend_forward_context import _EXTRA_CTX
from vllm_ascend.attention.attention_mask import AttentionMaskBuilder
from vllm_ascend.attention.attention_v1 import FIAParamProvider, FIAV2ParamProvider
from vllm_ascend.compilation.updatable_graph import get_capture_resource, register_task

# It puts vllm-ascend's own function there, which ours calls.
from vllm_ascend.patch.worker import patch_qwen3_dflash  # noqa: F401

from mkv_ascend.adapters.common.attention import backends
from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.common.attention.records import WINDOW
from mkv_ascend.adapters.common.patches.attention import choosing_keys
from mkv_ascend.adapters.patching import patch, replaced

# Keys of the accepted tokens, which a dflash draft caches, are rotated with and without Triton.


@patch(
    name="rotated keys of a draft of mask tokens",
    target="vllm.model_executor.models.qwen3_dflash:DFlashQwen3Model.precompute_and_store_context_kv",
    reads=(
        "vllm_ascend.patch.worker.patch_qwen3_dflash:precompute_and_store_context_kv",
        "vllm_ascend.ops.rotary_embedding:rope_forward_oot",
    ),
)
def rotate_in_place(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """As vllm-ascend's, with a rotary embedding that works in place."""
    rotary = model.layers[0].self_attn.rotary_emb
    forward = rotary.forward

    def in_place(
        positions: torch.Tensor, keys: torch.Tensor, *others: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        rotated, rest = forward(positions, keys, *others)
        if rotated.data_ptr() != keys.data_ptr():
            keys.copy_(rotated)
        return keys, rest

    with replaced(rotary, "forward", in_place):
        return original(model, *args, **kwargs)


# Windows of rows that see those behind them, as layers of a draft of mask tokens may have.
#
# A row of such a layer sees as far ahead as back: with a window of W the W - 1 keys before its
# own, its own, and the W - 1 behind it, as far as there are any (vLLM 0.30.0, ``flash_attn.py``).
#
# vllm-ascend 0.30.0rc2 passes no window where metadata is not causal, and in a graph one that
# ends with the row's own key. The operator takes both bounds: sparse_mode 4 counts pre_tokens
# back and next_tokens ahead of the place where the last row lies at the last key, by the same
# fixed mask as causal attention (op-plugin, npu_fused_infer_attention_score: sparse_mode).

BAND = 4
"""sparse_mode of a band of keys around each row's own."""
WORKSPACE = "mkv_ascend: windows of rows that see those behind them"


def install() -> None:
    """Apply the patches, and give layers of drafts with windows this implementation. Idempotent."""
    rotate_in_place.apply()
    number_of_keys.apply()
    backends.WINDOWS_OF_DRAFTS["vllm_ascend.attention.attention_v1:AscendAttentionBackend"] = (
        implementation
    )


@functools.cache
def implementation(base: type[Any]) -> type[Any]:
    """The implementation ``base`` with windows where metadata is not causal."""

    def forward_fused_infer_attention(
        self: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        kv_cache: Any = None,
    ) -> torch.Tensor:
        if attn_metadata.causal:
            result: torch.Tensor = base.forward_fused_infer_attention(
                self, query, key, value, attn_metadata, output, kv_cache
            )
            return result
        rows = attn_metadata.actual_seq_lengths_q[-1]
        cache = self._get_fia_params(key, value, attn_metadata, kv_cache)
        launch = _launch(self, query[:rows], cache, attn_metadata)
        if _EXTRA_CTX.capturing:
            launch.capture(output[:rows])
        else:
            output[:rows] = launch.run()
        return output

    members = {"forward_fused_infer_attention": forward_fused_infer_attention}
    return derive(base, "[window]", members, WINDOW)


@dataclass(frozen=True)
class Launch:
    """One launch of the operator.

    Attributes:
        operator: with its ``out`` form.
        workspace: makes a workspace for such a launch.
        arguments: of the operator.
        lengths: finds in a replay's metadata what each step changes.
    """

    operator: Any
    workspace: Callable[..., torch.Tensor]
    arguments: dict[str, Any]
    lengths: Any

    def run(self) -> torch.Tensor:
        """What rows attend to, [rows, heads, size]."""
        attended: torch.Tensor = self.operator(**self.arguments)[0]
        return attended

    def capture(self, output: torch.Tensor) -> None:
        """Capture it as a task of the graph that writes ``output`` [rows, heads, size]."""
        workspace = get_capture_resource(
            f"{WORKSPACE}: {self.operator}",
            lambda: self.workspace(**self.arguments),
            use_max_workspace=True,
        )
        log_sums = torch.empty(1, dtype=output.dtype, device=output.device)
        out = {"workspace": workspace, "out": [output, log_sums]}
        register_task(self.operator.out, {**self.arguments, **out}, self.lengths)


def _launch(
    implementation: Any,
    query: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor, int, torch.Tensor, list[int]],
    metadata: Any,
) -> Launch:
    """The launch of a layer over ``query`` [rows, heads, size]; ``cache``: its keys and values."""
    keys, values, block_size, table, lengths = cache
    ends, name = metadata.actual_seq_lengths_q, implementation._layer_name
    arguments = {
        "query": query,
        "key": keys,
        "value": values,
        # Metadata that is not causal has none.
        "atten_mask": AttentionMaskBuilder(query.device).get_splitfuse_attn_mask(),
        "block_table": table,
        "block_size": block_size,
        "input_layout": "TND",
        "num_key_value_heads": implementation.num_kv_heads,
        "sparse_mode": BAND,
        "pre_tokens": implementation.sliding_window,
        "next_tokens": implementation.sliding_window,
    }
    if implementation.sinks is None:
        return Launch(
            torch_npu.npu_fused_infer_attention_score,
            torch_npu._npu_fused_infer_attention_score_get_max_workspace,
            {
                **arguments,
                "num_heads": implementation.num_heads,
                "scale": implementation.scale,
                "actual_seq_lengths": ends,
                "actual_seq_lengths_kv": lengths,
            },
            # No window: then the block table is renewed, too.
            FIAParamProvider(name, None, _EXTRA_CTX.is_draft_model),
        )
    return Launch(
        torch_npu.npu_fused_infer_attention_score_v2,
        torch_npu._npu_fused_infer_attention_score_v2_get_max_workspace,
        {
            **arguments,
            "num_query_heads": implementation.num_heads,
            "softmax_scale": implementation.scale,
            "actual_seq_qlen": ends,
            "actual_seq_kvlen": lengths,
            "learnable_sink": implementation.sinks,
        },
        FIAV2ParamProvider(name),
    )


@patch(
    name="number of keys that a sparse layer chooses",
    target="vllm_ascend.attention.indexer:AscendSFAIndexerBackend.forward",
    reads=(
        "vllm_ascend.attention.indexer:DeviceOperator",
        "vllm_ascend.device.device_op:BaseDeviceAdaptor.indexer_select_post_process",
    ),
)
def number_of_keys(original: Any, indexer: Any, *args: Any, **kwargs: Any) -> Any:
    """As many keys as the indexer holds."""
    # The indexer's module imports the device's, which imports it in a circle.
    from vllm_ascend.attention import indexer as module

    chooses = module.DeviceOperator.indexer_select_post_process
    with choosing_keys(indexer.topk_tokens, chooses):
        return original(indexer, *args, **kwargs)
