# SPDX-License-Identifier: Apache-2.0
"""What the plugin asks of this adapter: vllm-ascend 0.30.0rc2 with its model runners V1 and V2.

Importing this module imports neither vLLM nor vllm-ascend.
"""

from __future__ import annotations

from pathlib import Path

from mkv_ascend.checks.host_rules import HostRules

PACKAGE = "mkv_ascend.adapters.vllm_ascend_0_30"
PLATFORM = "mkv_ascend.adapters.vllm_ascend_0_30.platform.MkvPlatform"
WORKER = "mkv_ascend.adapters.vllm_ascend_0_30.v1.worker.MkvWorker"
VERSIONS = {"vllm": ("0.30.0",), "vllm-ascend": ("0.30.0rc2",)}
RUNNERS = ("v1", "v2")
FINGERPRINTS = Path(__file__).with_name("fingerprints.json")
RULES = HostRules(
    quantizations=(
        *("ascend", "compressed-tensors", "fp8", "deepseek_v4_fp8"),
        *("modelopt_mxfp8", "mxfp8"),
    ),
    equal_pages=True,
    indexer_is_a_layer=True,
    plans_compressed=False,
    compressed_in_one_process=False,
    hits_beside_states=True,
)


def start_process() -> None:
    """Apply vllm-ascend's process-wide patches; let it accept our options, and vLLM our methods.

    Otherwise only its own general plugins apply its patches in the engine core's process, and
    ``VLLM_PLUGINS`` may leave those out.
    """
    from vllm_ascend.utils import adapt_patch

    from mkv_ascend.adapters.vllm_ascend_0_30.common.patches import own_options
    from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches import methods_of_v2

    adapt_patch(is_global_patch=True)
    own_options.accept()
    methods_of_v2.serve_our_methods.apply()
