# SPDX-License-Identifier: Apache-2.0
"""Quantised weights of drafts, and captured launches on keys and values of 8 bits."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch_npu
from vllm_ascend.ascend_forward_context import _EXTRA_CTX
from vllm_ascend.compilation import acl_graph
from vllm_ascend.utils import weak_ref_tensors

from mkv_ascend.adapters.common.patches import quantized
from mkv_ascend.adapters.common.patches.quantized import by_name_in_checkpoint, launch_arguments
from mkv_ascend.adapters.patching import patch

# Captured launches with several queries per request on keys and values of 8 bits.
#
# vllm-ascend 0.23.0 updates a captured launch on such a cache as one of a query per request. So
# these launches are noted with their arguments, and updated here; all others stay with
# vllm-ascend.


@dataclass(frozen=True)
class Int8Launch:
    """What is noted of a launch.

    Attributes:
        layer: name of its layer.
        arguments: its arguments, except lengths and block table.
    """

    layer: str
    arguments: dict[str, Any]


def install() -> None:
    """Apply the patches. Idempotent."""
    quantized.install(capture)
    update_int8_launches.apply()
    read_descriptions.apply()


def capture(
    implementation: Any, layer: Any, query: torch.Tensor, metadata: Any, output: torch.Tensor
) -> torch.Tensor:
    """Capture a launch as a task of its own, and note it for updates."""
    requests, tokens = len(metadata.actual_seq_lengths_q), metadata.actual_seq_lengths_q[-1]
    table = _table()
    arguments = launch_arguments(
        implementation,
        layer,
        query[:tokens].view(requests, tokens // requests, *query.shape[1:]),
        metadata.attn_mask,
    )
    given = {
        "block_table": metadata.block_tables,
        "actual_seq_lengths_kv": metadata.seq_lens_list,
    }
    workspace = torch_npu._npu_fused_infer_attention_score_get_max_workspace(**arguments, **given)
    out = [output[:tokens].view_as(arguments["query"]), torch.empty(1, device=query.device)]
    arguments |= {"workspace": workspace, "out": out}
    known = table.workspaces.get(tokens)
    if known is None or workspace.nbytes > known.nbytes:
        table.workspaces[tokens] = workspace
    stream = torch_npu.npu.current_stream()
    event = torch_npu.npu.ExternalEvent()
    event.wait(stream)
    event.reset(stream)
    table.events[tokens].append(event)
    noted = {name: _weak(value) for name, value in arguments.items()}
    table.attn_params[tokens].append(Int8Launch(layer.layer_name, noted))
    torch_npu.npu.graph_task_group_begin(stream)
    torch_npu.npu_fused_infer_attention_score.out(**arguments, **given)
    table.handles[tokens].append(torch_npu.npu.graph_task_group_end(stream))
    return output


def _weak(value: Any) -> Any:
    holds_tensors = isinstance(value, torch.Tensor | list)
    return weak_ref_tensors(value) if holds_tensors else value


def _table() -> Any:
    """Where the model that runs notes its launches."""
    if not _EXTRA_CTX.is_draft_model:
        return acl_graph.get_graph_params()
    if _EXTRA_CTX.is_draft_model_prefill:
        return acl_graph.get_draft_graph_prefill_params()
    return acl_graph.get_draft_graph_params()


@patch(
    name="captured verify steps on keys and values of 8 bits",
    target="vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.update_graph_params",
    reads=(
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.full_graph_fia",
        "vllm_ascend.compilation.acl_graph:GraphParams",
    ),
)
def update_int8_launches(
    original: Callable[..., None],
    update_stream: Any,
    forward_context: Any,
    num_tokens: int,
    vllm_config: Any,
    speculative_config: Any = None,
    num_dcp_pcp_tokens: Any = None,
    draft_attn_metadatas: Any = None,
) -> None:
    """Update the launches that are noted here, and have vllm-ascend update all others."""
    table = _table()
    noted = list(table.attn_params.get(num_tokens, ()))
    mine = [place for place, launch in enumerate(noted) if isinstance(launch, Int8Launch)]
    others = [place for place in range(len(noted)) if place not in set(mine)]
    rest = vllm_config, speculative_config, num_dcp_pcp_tokens
    if not mine:
        original(update_stream, forward_context, num_tokens, *rest, draft_attn_metadatas)
        return
    if _EXTRA_CTX.is_draft_model:
        passes: Sequence[Mapping[str, Any]] = draft_attn_metadatas
    else:
        passes = [forward_context.attn_metadata]
    names = [noted[place].layer for place in mine]
    if others:
        left = [{key: value for key, value in one.items() if key not in names} for one in passes]
        context = copy.copy(forward_context)
        context.attn_metadata = left[0]
        given = None if draft_attn_metadatas is None else left
        with _noted_only(table, num_tokens, others):
            original(update_stream, context, num_tokens, *rest, given)
    seen: Counter[str] = Counter()
    with torch_npu.npu.stream(update_stream):
        for place in mine:
            launch = noted[place]
            metadata = passes[seen[launch.layer]][launch.layer]
            seen[launch.layer] += 1
            torch_npu.npu.graph_task_update_begin(update_stream, table.handles[num_tokens][place])
            torch_npu.npu_fused_infer_attention_score.out(
                **launch.arguments,
                block_table=metadata.block_tables,
                actual_seq_lengths_kv=metadata.seq_lens_list,
            )
            torch_npu.npu.graph_task_update_end(update_stream)
            table.events[num_tokens][place].record(update_stream)


@contextmanager
def _noted_only(table: Any, tokens: int, places: Sequence[int]) -> Iterator[None]:
    """Leave only the launches at these places in vllm-ascend's table while the block runs."""
    kept = [table.events, table.handles, table.attn_params]
    before = [notes[tokens] for notes in kept]
    for notes, whole in zip(kept, before, strict=True):
        notes[tokens] = [whole[place] for place in places]
    try:
        yield
    finally:
        for notes, whole in zip(kept, before, strict=True):
            notes[tokens] = whole


# Quantised weights of a draft: their description, and the names of its layers in it.


@patch(
    name="description of a draft's quantised weights",
    target=(
        "vllm.model_executor.model_loader.weight_utils:get_quant_config",
        "vllm_ascend.quantization.modelslim_config:AscendModelSlimConfig.get_quant_method",
        "vllm_ascend.quantization.compressed_tensors_config"
        ":AscendCompressedTensorsConfig.get_quant_method",
    ),
    reads=(
        "vllm.config.vllm:VllmConfig._get_quantization_config",
        "vllm.v1.spec_decode.draft_model:DraftModelProposer._get_model",
        "vllm_ascend.quantization.modelslim_config:AscendModelSlimConfig.is_layer_skipped_ascend",
    ),
)
def read_descriptions(original: Any, model_config: Any, *rest: Any, **named: Any) -> Any:
    """``get_quant_config`` for a model whose overrides are a function, too."""
    if not isinstance(model_config.hf_overrides, dict):
        model_config = copy.copy(model_config)
        model_config.hf_overrides = {}
    return original(model_config, *rest, **named)


for _target in read_descriptions.record.targets[1:]:
    read_descriptions.also(target=_target)(by_name_in_checkpoint)
