# SPDX-License-Identifier: Apache-2.0
"""A graph for as many requests as there may be at once.

vllm-ascend (0.23.0, ``NPUPlatform.apply_config_platform_defaults``) asks for graphs of at most
``max_num_seqs * (1 + K)`` tokens. vLLM captures multiples of 8 up to there, of which it then takes
those that round up to whole requests below the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mkv_ascend.adapters.patching import patch

if TYPE_CHECKING:
    from vllm.config import VllmConfig


@patch(
    name="a graph for all requests",
    target="vllm.config.vllm:VllmConfig._set_cudagraph_sizes",
    reads=("vllm_ascend.platform:NPUPlatform._get_default_max_cudagraph_capture_size",),
)
def capture_the_largest(original: Any, config: VllmConfig) -> None:
    """vLLM's method, and once more with the largest size beside those that it chose."""
    compilation = config.compilation_config
    given, largest = compilation.cudagraph_capture_sizes, compilation.max_cudagraph_capture_size
    original(config)
    chosen = compilation.cudagraph_capture_sizes
    if given is None and largest is not None and chosen:
        most = min(largest, config.scheduler_config.max_num_batched_tokens)
        compilation.cudagraph_capture_sizes = sorted({*chosen, most})
        compilation.max_cudagraph_capture_size = None
        original(config)
