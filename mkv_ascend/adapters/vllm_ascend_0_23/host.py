# SPDX-License-Identifier: Apache-2.0
"""What the plugin asks of this adapter: vllm-ascend 0.23.0 with model runner V1.

Importing this module imports neither vLLM nor vllm-ascend.
"""

from __future__ import annotations

from pathlib import Path

from mkv_ascend.checks.host_rules import HostRules

PACKAGE = "mkv_ascend.adapters.vllm_ascend_0_23"
PLATFORM = "mkv_ascend.adapters.vllm_ascend_0_23.platform.MkvPlatform"
WORKER = "mkv_ascend.adapters.vllm_ascend_0_23.worker.MkvWorker"
VERSIONS = {"vllm": ("0.23.0",), "vllm-ascend": ("0.23.0", "0.23.0.post1")}
RUNNERS = ("v1",)
FINGERPRINTS = Path(__file__).with_name("fingerprints.json")
RULES = HostRules(
    quantizations=("ascend", "compressed-tensors", "fp8", "deepseek_v4_fp8"),
    equal_pages=False,
    indexer_is_a_layer=False,
    plans_compressed=True,
    compressed_in_one_process=True,
    hits_beside_states=False,
)


def start_process() -> None:
    """Apply vllm-ascend's process-wide patches.

    Otherwise only its own general plugins apply them in the engine core's process, and
    ``VLLM_PLUGINS`` may leave those out.
    """
    from vllm_ascend.utils import adapt_patch

    adapt_patch(is_global_patch=True)
