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
    why="vllm-ascend puts a class of its own in the place of DeepSeek's drafting layer, from which "
    "vLLM derives openPangu's. Its forward reads what its constructor sets, and openPangu's runs "
    "no constructor but torch's, so that the engine ends at the first draft. It returns two "
    "tensors as well, which vllm-ascend expects of DeepSeek's model alone.",
    until="vllm-ascend leaves layers alone that derive from DeepSeek's",
    test=(
        "tests/emulated/benchmarks/test_matrix.py::test_a_cell_ends_as_published",
        "tests/emulated/models/test_openpangu.py",
    ),
)
def as_vllm_wrote_it(original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
    """``forward`` of the class below vllm-ascend's, where ``layer`` is of that one."""
    if not isinstance(layer, AscendDeepSeekMultiTokenPredictorLayer):
        return original(layer, *args, **kwargs)
    return super(AscendDeepSeekMultiTokenPredictorLayer, layer).forward(*args, **kwargs)
