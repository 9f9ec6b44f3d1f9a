# SPDX-License-Identifier: Apache-2.0
"""Each model's own methods of sending tokens to its experts.

vllm-ascend 0.23.0 keeps one set of MoE communication methods per process. Each layer with experts
replaces it, so the last layer built counts, and that is the draft's. A target with another number
of experts, or of experts per token, then distributes its tokens with the draft's numbers, or stops
where an expert's index exceeds them.

vllm-ascend also asks the target's configuration which of the methods a pass takes: none if the
target has no experts. A draft with experts then takes the method that vllm-ascend takes without
expert parallelism.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.fused_moe import FusedMoE
from vllm_ascend.ascend_forward_context import MoECommType
from vllm_ascend.ops.fused_moe import moe_comm_method

from mkv_ascend.adapters.patching import record

if TYPE_CHECKING:
    from torch import nn

EXPERT_METHODS = record(
    name="expert methods per model",
    target=(
        "vllm_ascend.ops.fused_moe.moe_comm_method:_MoECommMethods",
        "vllm_ascend.ops.fused_moe.fused_moe_0_23_0:AscendMoERunner._forward_impl",
    ),
    reads=("vllm_ascend.ops.fused_moe.moe_comm_method:setup_moe_comm_method",),
)

Methods = dict[Any, Any]
"""Kind of communication -> its method."""


@contextlib.contextmanager
def preserve_expert_methods() -> Iterator[Methods]:
    """Restore the target's methods at the end; yields a dict that then holds the draft's."""
    current: Methods = moe_comm_method._MoECommMethods
    target, draft = dict(current), Methods()
    try:
        yield draft
    finally:
        draft.update(current)
        current.clear()
        current.update(target)


def use_methods(model: nn.Module, methods: Methods) -> None:
    """Let the layers with experts in ``model`` use ``methods`` instead of the process's."""
    for layer in model.modules():
        if isinstance(layer, FusedMoE):
            layer.runner._forward_impl = _with_methods(layer.runner._forward_impl, methods)


def _with_methods(forward: Callable[..., Any], methods: Methods) -> Callable[..., Any]:
    def forward_with_methods(*args: Any, **kwargs: Any) -> Any:
        context = get_forward_context()
        before = context.moe_comm_type, context.moe_comm_method
        kind = MoECommType.ALLGATHER if before[0] is None else before[0]
        context.moe_comm_type, context.moe_comm_method = kind, methods.get(kind)
        try:
            return forward(*args, **kwargs)
        finally:
            context.moe_comm_type, context.moe_comm_method = before

    return forward_with_methods
