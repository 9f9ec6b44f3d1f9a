# SPDX-License-Identifier: Apache-2.0
"""How many keys a sparse layer chooses: its model's ``index_topk``.

vllm-ascend 0.23.0 always chooses 2048, whatever the model says; the published models say 2048. The
layer's indexer holds the number (``topk_tokens``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mkv_ascend.adapters.patching import patch, wrap

COUNT_OF_VLLM_ASCEND = 2048
ARGUMENTS = (
    "q_li", "q_li_scale", "q_li_shape_ori", "weights", "kv_cache", "attn_metadata",
    "actual_seq_lengths_query", "actual_seq_lengths_key", "enable_sparse_li_c8",
    "use_torch_npu_lightning_indexer",
)  # fmt: skip
"""Of ``indexer_select_post_process``, behind the implementation."""


def install() -> None:
    """Wrap the method of this device's adaptor that chooses keys. Idempotent."""
    import vllm_ascend.ops  # noqa: F401  (before the device's module, which imports it in a circle)
    from vllm_ascend.device.device_op import DeviceOperator

    for function in number_of_keys.functions.values():
        wrap(DeviceOperator, "indexer_select_post_process", function)


@patch(
    name="number of keys that a sparse layer chooses",
    target="vllm_ascend.device.device_op:BaseDeviceAdaptor.indexer_select_post_process",
    reads=("vllm_ascend.device.device_op:DeviceOperator",),
)
def number_of_keys(
    original: Callable[..., torch.Tensor], sfa_impl: Any, *arguments: Any
) -> torch.Tensor:
    """As many keys as the layer's indexer holds.

    Raises:
        NotImplementedError: on other generations, whose adaptors call other operators.
    """
    from vllm_ascend.device.device_op import BaseDeviceAdaptor

    count = sfa_impl.indexer.topk_tokens
    if count == COUNT_OF_VLLM_ASCEND:
        return original(sfa_impl, *arguments)
    if original.__qualname__.partition(".")[0] != BaseDeviceAdaptor.__name__:
        raise NotImplementedError(
            f"index_topk is {count}; on this device generation layers choose "
            f"{COUNT_OF_VLLM_ASCEND} keys. Use a model with that index_topk"
        )
    return choose_keys(sfa_impl, count, dict(zip(ARGUMENTS, arguments, strict=True)))


def choose_keys(sfa_impl: Any, count: int, given: dict[str, Any]) -> torch.Tensor:
    """The positions of the ``count`` keys for each query, int32 ``[tokens, 1, count]``.

    Args:
        sfa_impl: vllm-ascend's implementation of the layer.
        given: the other arguments of ``indexer_select_post_process``, by name.
    """
    caches = given["kv_cache"]
    place = 1 if sfa_impl.enable_sparse_sfa_c8 else 2
    shared = {
        "key": caches[place],
        "actual_seq_lengths_query": given["actual_seq_lengths_query"],
        "actual_seq_lengths_key": given["actual_seq_lengths_key"],
        "block_table": given["attn_metadata"].block_table,
        "layout_query": "TND",
        "layout_key": "PA_BSND",
        "sparse_count": count,
        "sparse_mode": 3,
    }
    query, weights = given["q_li"], given["weights"]
    if given["enable_sparse_li_c8"]:
        shape = given["q_li_shape_ori"]
        quantised: torch.Tensor = torch.ops._C_ascend.npu_lightning_indexer_quant(
            query=query.view(shape),
            weights=weights.to(torch.float16),
            query_dequant_scale=given["q_li_scale"].view(shape[:-1]),
            key_dequant_scale=caches[place + 1].squeeze(2),
            query_quant_mode=0,
            key_quant_mode=0,
            **shared,
        )
        return quantised
    if given["use_torch_npu_lightning_indexer"]:
        import torch_npu

        operator = torch_npu.npu_lightning_indexer
    else:
        operator = torch.ops._C_ascend.npu_lightning_indexer
    positions: torch.Tensor
    positions, _ = operator(query=query, weights=weights, **shared)
    return positions
