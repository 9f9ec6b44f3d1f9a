# SPDX-License-Identifier: Apache-2.0
"""The one platform slot of vLLM: the stock platform is disabled, so that only ours answers."""

from __future__ import annotations

from mkv_ascend.adapters.patching import record

OURS = record(
    name="our platform, worker and model runner",
    target=(
        "vllm_ascend:register",
        "vllm_ascend.platform:NPUPlatform.pre_register_and_update",
        "vllm_ascend.platform:NPUPlatform.check_and_update_config",
        "vllm_ascend.platform:NPUPlatform.register_custom_kv_cache_specs",
        "vllm_ascend.worker.worker:NPUWorker.__init__",
        "vllm_ascend.worker.worker:NPUWorker.init_device",
        "vllm_ascend.worker.worker:NPUWorker.compile_or_warm_up_model",
        "vllm_ascend.worker.worker:NPUWorker.execute_model",
        "vllm_ascend.worker.worker:NPUWorker.sample_tokens",
        "vllm_ascend.worker.worker:NPUWorker.sleep",
        "vllm_ascend.worker.worker:NPUWorker.wake_up",
        "vllm_ascend.worker.worker:NPUWorker.update_max_model_len",
        "vllm_ascend.worker.worker:NPUWorker.start_weight_update",
        "vllm_ascend.worker.worker:NPUWorker.finish_weight_update",
        "vllm_ascend.worker.worker:NPUModelRunner",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.load_model",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache",
        "vllm_ascend.ascend_config:AscendConfig",
    ),
    reads=(
        "vllm_ascend.ascend_config:init_ascend_config",
        "vllm.model_executor.layers.mamba.ops.ssu_dispatch:initialize_mamba_ssu_backend",
    ),
)
"""How classes of ours take part in vllm-ascend's processes."""


def _no_platform() -> None:
    """What ``vllm_ascend.register`` answers while the slot is claimed."""
    return None


def claim() -> None:
    """Make ``vllm_ascend.register`` answer None.

    The function's code is exchanged, not the module's attribute: vLLM may already hold the function
    object when the plugin is imported.

    Raises:
        ImportError: vllm-ascend cannot be imported.
        TypeError: ``register`` is no plain function, so its code cannot be exchanged.
    """
    import vllm_ascend

    register = vllm_ascend.register
    if not hasattr(register, "__code__") or register.__code__.co_freevars:
        raise TypeError("vllm_ascend.register is not a plain function any more")
    register.__code__ = _no_platform.__code__
