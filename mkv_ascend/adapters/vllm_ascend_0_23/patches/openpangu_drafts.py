# SPDX-License-Identifier: Apache-2.0
"""openPangu's drafting layer runs as vLLM wrote it."""

from __future__ import annotations

from typing import Any

from vllm_ascend.patch.worker.patch_deepseek_mtp import AscendDeepSeekMultiTokenPredictorLayer

from mkv_ascend.adapters.patching import patch, wrap


def install() -> None:
    """Wrap what openPangu's layer inherits, and leave DeepSeek's alone. Idempotent."""
    # Behind vllm-ascend's class, from which it derives where that was there first.
    from vllm.model_executor.models.openpangu_mtp import OpenPanguMultiTokenPredictorLayer

    for function in as_vllm_wrote_it.functions.values():
        wrap(OpenPanguMultiTokenPredictorLayer, "forward", function)


@patch(
    name="openPangu's drafting layer",
    target="vllm_ascend.patch.worker.patch_deepseek_mtp"
    ":AscendDeepSeekMultiTokenPredictorLayer.forward",
    reads=(
        "vllm_ascend.patch.worker.patch_deepseek_mtp"
        ":AscendDeepSeekMultiTokenPredictorLayer.__init__",
        "vllm.model_executor.models.openpangu_mtp:OpenPanguMultiTokenPredictorLayer.__init__",
        "vllm.model_executor.models.deepseek_mtp:DeepSeekMultiTokenPredictorLayer.forward",
        "vllm_ascend.spec_decode.llm_base_proposer"
        ":AscendSpecDecodeBaseProposer.model_returns_tuple",
    ),
)
def as_vllm_wrote_it(original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
    """``forward`` of the class below vllm-ascend's, where ``layer`` is of that one."""
    if not isinstance(layer, AscendDeepSeekMultiTokenPredictorLayer):
        return original(layer, *args, **kwargs)
    return super(AscendDeepSeekMultiTokenPredictorLayer, layer).forward(*args, **kwargs)
