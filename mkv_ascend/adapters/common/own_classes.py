# SPDX-License-Identifier: Apache-2.0
"""The record of how classes of ours take part in vllm-ascend's processes."""

from __future__ import annotations

from mkv_ascend.adapters.patching import record

OURS = record(
    name="our platform, worker and model runner",
    target=(
        "vllm_ascend.platform:NPUPlatform.pre_register_and_update",
        "vllm_ascend.platform:NPUPlatform.check_and_update_config",
        "vllm_ascend.platform:NPUPlatform.register_custom_kv_cache_specs",
        "vllm_ascend.worker.worker:NPUWorker.__init__",
        "vllm_ascend.worker.worker:NPUWorker.init_device",
        "vllm_ascend.worker.worker:NPUModelRunner",
    ),
    writes=("worker_cls", "backend"),
    why="In the front process, the engine core and each worker vLLM calls one of these methods "
    "before anything that a patch of ours replaces. The second sets our worker and checks our "
    "options, and vllm-ascend would forget the backend that vLLM's own option names; the worker "
    "names its runner's class by a global of its module.",
    until="vllm-ascend takes the classes of its worker and its runner from options",
    test=(
        "tests/emulated/platform/test_front_check.py",
        "tests/emulated/platform/test_platform.py",
        "tests/emulated/layout/test_layout_groups.py",
        "tests/emulated/models/test_backend_choice.py",
    ),
)
