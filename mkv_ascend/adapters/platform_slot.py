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
    writes=(
        "__code__",
        "worker_cls",
        "backend",
        "_needs_seq_lens_cpu_sync",
        "effective_drafter_max_model_len",
        "max_model_len",
        "async_scheduling",
        "block_size",
    ),
    why="vLLM accepts one out-of-tree platform; with vllm-ascend's beside ours it would refuse to "
    "start. In the front process, the engine core and each worker vLLM calls one of these methods "
    "before anything that a patch of ours replaces. The second sets our worker and checks our "
    "options, and vllm-ascend would forget the backend that vLLM's own option names; without "
    "prefix caching and chunked prefill it leaves blocks of 16 tokens that nobody asked for, which "
    "no kernel takes, and which 0.30.0rc2 changes once its runner has read them; the worker "
    "names its runner's class by a global of its module. The runner's two steps are followed by "
    "what needs all layers, or all caches: our checks, tables and choices, the kernel of Mamba's "
    "state update, which vllm-ascend never chooses, and exact lengths on the host if the builder "
    "of any layer reads them, not of the target's alone; a batch drafts on where one request is "
    "near the longest context. Of 0.30.0rc2 every key of additional_config becomes an argument "
    "of AscendConfig, which refuses ours. A worker says what it serves once it is warm. Before "
    "sleep that keeps no weights it copies the draft's to the host, as nobody loads them again, "
    "and it zeroes caches that wake up with whatever is there. Its transfer of weights from a "
    "trainer knows the target alone (0.30.0rc2): a draft's begin with start_draft_weight_update, "
    "as in vLLM, and the next ones are the target's again. The runner alone is told that vLLM has "
    "shortened the longest request to memory, and a draft goes on behind its block table. vLLM "
    "hears one rank of a step alone: where another one fails, the others wait for it in a "
    "collective, and the engine for them.",
    until="vLLM lets one platform plugin build on another, and vllm-ascend takes the classes of "
    "its worker and its runner from options, sends weights and shortened lengths to drafts, leaves "
    "keys of other plugins alone, asks the builders of all layers and calls "
    "initialize_mamba_ssu_backend, and vLLM's "
    "executor hears each rank",
    test=(
        "tests/emulated/platform/test_seat.py",
        "tests/emulated/platform/test_front_check.py",
        "tests/emulated/platform/test_serve.py::test_a_server_gives_the_targets_own_tokens_and_reports_acceptance",
        "tests/emulated/graphs/test_draft_graphs.py::test_a_draft_may_be_asked_to_run_eagerly",
        "tests/emulated/platform/test_platform.py",
        "tests/emulated/platform/test_failed_ranks.py",
        "tests/emulated/layout/test_layout_groups.py",
        "tests/emulated/models/test_backend_choice.py",
        "tests/emulated/recurrent/test_mamba_models.py",
        "tests/emulated/drafting/test_sleep.py",
        "tests/emulated/drafting/test_new_weights.py",
        "tests/emulated/drafting/test_drafting_groups.py"
        "::test_proposals_where_vllm_shortens_requests_to_memory",
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
