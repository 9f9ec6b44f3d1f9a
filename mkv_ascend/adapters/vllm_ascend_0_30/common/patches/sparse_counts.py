# SPDX-License-Identifier: Apache-2.0
"""How many keys a sparse layer chooses: its model's ``index_topk``.

vllm-ascend 0.30.0rc2 always chooses 2048, whatever the model says; the published models say 2048.
The layer's indexer holds the number (``topk_tokens``).
"""

from __future__ import annotations

from typing import Any

import torch

from mkv_ascend.adapters.patching import patch, replaced

COUNT_OF_VLLM_ASCEND = 2048


class Choosing:
    """The device's adaptor for the calls of one indexer, which chooses ``count`` keys."""

    def __init__(self, adaptor: Any, count: int) -> None:
        self._adaptor, self._count = adaptor, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adaptor, name)

    def indexer_select_post_process(
        self,
        query: torch.Tensor,
        query_scale: torch.Tensor | None,
        query_shape: tuple[int, ...] | None,
        weights: torch.Tensor,
        caches: tuple[torch.Tensor, ...],
        key_place: int,
        scale_place: int,
        metadata: Any,
        query_ends: torch.Tensor,
        key_lengths: torch.Tensor,
        is_int8: bool,
        *_: Any,
    ) -> torch.Tensor:
        """The positions of the keys that are chosen for each query, int32 [tokens, 1, count].

        Args:
            query: [tokens, heads, size]; quantised, it has ``query_scale``.
            caches: the indexer's own: keys, and their scales where they are int8.
        """
        shared = {
            "key": caches[key_place],
            "actual_seq_lengths_query": query_ends,
            "actual_seq_lengths_key": key_lengths,
            "block_table": metadata.block_table,
            "layout_query": "TND",
            "layout_key": "PA_BSND",
            "sparse_count": self._count,
            "sparse_mode": 3,
        }
        if is_int8:
            assert query_shape is not None
            assert query_scale is not None
            quantised: torch.Tensor = torch.ops._C_ascend.npu_lightning_indexer_quant(
                query=query.view(query_shape),
                weights=weights.to(torch.float16),
                query_dequant_scale=query_scale.view(query_shape[:-1]),
                key_dequant_scale=caches[scale_place].squeeze(2),
                query_quant_mode=0,
                key_quant_mode=0,
                **shared,
            )
            return quantised
        import torch_npu

        positions: torch.Tensor
        positions, _ = torch_npu.npu_lightning_indexer(query=query, weights=weights, **shared)
        return positions


@patch(
    name="number of keys that a sparse layer chooses",
    target="vllm_ascend.attention.indexer:AscendSFAIndexerBackend.forward",
    reads=(
        "vllm_ascend.attention.indexer:DeviceOperator",
        "vllm_ascend.device.device_op:BaseDeviceAdaptor.indexer_select_post_process",
    ),
)
def number_of_keys(original: Any, indexer: Any, *args: Any, **kwargs: Any) -> Any:
    """As many keys as the indexer holds.

    Raises:
        NotImplementedError: on other generations, whose adaptors call other operators.
    """
    # The indexer's module imports the device's, which imports it in a circle.
    from vllm_ascend.attention import indexer as module
    from vllm_ascend.device.device_op import BaseDeviceAdaptor

    count, adaptor = indexer.topk_tokens, module.DeviceOperator
    if count == COUNT_OF_VLLM_ASCEND:
        return original(indexer, *args, **kwargs)
    chooses = adaptor.indexer_select_post_process
    if chooses is not BaseDeviceAdaptor.indexer_select_post_process:
        raise NotImplementedError(
            f"index_topk is {count}; on this device generation layers choose "
            f"{COUNT_OF_VLLM_ASCEND} keys. Use a model with that index_topk"
        )
    with replaced(module, "DeviceOperator", Choosing(adaptor, count)):
        return original(indexer, *args, **kwargs)
