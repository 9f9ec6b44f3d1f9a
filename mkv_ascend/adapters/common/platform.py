# SPDX-License-Identifier: Apache-2.0
"""MkvPlatform: vllm-ascend's platform with our workers and configuration, on every host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_ascend.platform import NPUPlatform

from mkv_ascend.adapters.common import request_limits
from mkv_ascend.adapters.common.judge import early_check, facts_of_config, front_check
from mkv_ascend.adapters.common.options import options_of
from mkv_ascend.adapters.common.patches import draft_architecture
from mkv_ascend.adapters.contract import WORKER
from mkv_ascend.adapters.installed import adapter
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import override
from mkv_ascend.adapters.platform_slot import OURS
from mkv_ascend.adapters.refusal import refuse
from mkv_ascend.attention import catalog
from mkv_ascend.config import ConfigError, MkvConfig
from mkv_ascend.metrics import collect_from_workers
from mkv_ascend.rules import options as rules_of_options
from mkv_ascend.rules.kv_cache import KERNEL_BLOCK
from mkv_ascend.rules.refusal import RefusedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = get_logger(__name__)

STOCK_WORKER = "vllm_ascend.worker.worker.NPUWorker"


class MkvPlatform(NPUPlatform):
    """The platform that vLLM runs on when this package and vllm-ascend are installed.

    It adds two things. ``--additional-config`` is checked in the front process, before any worker
    starts. Our worker replaces vllm-ascend's. Everything else is vllm-ascend's, even the
    choice of a backend for callers outside attention layers. Attention layers choose in
    ``attention/layers.py``, because the platform's method does not know the layer and its answer is
    cached.
    """

    @classmethod
    @override(OURS)
    def pre_register_and_update(cls, parser: Any = None) -> None:
        """Apply vllm-ascend's patches of the front process, then ours.

        Configurations hold functions, such as the one that makes a head of a draft's configuration.
        One that we wrap has the name of the original, so pickle does not find it. vLLM's clients
        of an engine have configurations pickled by value; with several API servers and with
        ``--headless`` engines start before there is a client.
        """
        # Imports of vllm 0.30.0 go in circles where this module is imported.
        from vllm.transformers_utils.config import maybe_register_config_serialize_by_value

        from mkv_ascend.adapters.common import request_limits

        super().pre_register_and_update(parser)
        draft_architecture.keep_the_architecture.apply()
        front_check.say_refusals_alone.apply()
        request_limits.refuse_prompts_in_parts.apply()
        request_limits.limit_requests.apply()
        for patch in adapter().patches_of_the_front():
            patch.apply()
        maybe_register_config_serialize_by_value()

    @classmethod
    @override(OURS)
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Check our options, let vllm-ascend update the configuration, then set the worker.

        vLLM runs this again whenever it copies its configuration, for instance for the draft. So
        it must be idempotent.

        Raises:
            RefusedError: an option is unknown, of the wrong type or impossible, or a rule refuses.
            StartUpRefused: in its place, in vLLM's own command.
            ValueError: the options ask for something in a mode where this plugin cannot act.
        """
        try:
            config = options_of(vllm_config)
        except ConfigError as error:
            refuse(RefusedError(rules_of_options.of_problems(error.problems)))
        given = vllm_config.additional_config or {}
        if unknown := tuple(rules_of_options.unknown_names(given, adapter().RULES)):
            refuse(RefusedError(unknown))
        asked = vllm_config.attention_config.backend
        super().check_and_update_config(vllm_config)
        if asked is not None and asked.name in _names_of_backends():
            vllm_config.attention_config.backend = asked
        parallel_config = vllm_config.parallel_config
        if parallel_config is None or vllm_config.model_config is None:
            return
        host = adapter()
        if parallel_config.worker_cls == STOCK_WORKER:
            # The first call: for the target, in the front process.
            _take_kernel_blocks(vllm_config)
            if not facts_of_config.is_of_draft(vllm_config):
                if (reason := host.why_not_served(vllm_config)) is not None:
                    refuse(ValueError(reason))
                try:
                    early_check.check(vllm_config, None if asked is None else asked.name)
                except RefusedError as error:
                    refuse(error)
            if early_check.must_go_step_by_step(vllm_config):
                vllm_config.scheduler_config.async_scheduling = False
            early_check.say_what_is_left_out(vllm_config)
            collect_from_workers()
            parallel_config.worker_cls = WORKER
        elif parallel_config.worker_cls not in (WORKER, "auto"):
            _stay_out_of(parallel_config.worker_cls, config != MkvConfig())

    @classmethod
    @override(request_limits.limit_requests.record)
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        """Refuse numbers that a batch cannot hold.

        Raises:
            VLLMValidationError: the request has one.
        """
        super().validate_request(processed_inputs, params)
        request_limits.refuse_numbers(processed_inputs, params)

    @classmethod
    @override(OURS)
    def register_custom_kv_cache_specs(cls, vllm_config: VllmConfig | None) -> None:
        """Register vllm-ascend's specs, then apply our grouping if our worker runs.

        vLLM calls this in the engine core, before it groups layers. It also calls it when it looks
        up a spec's manager before any registration, possibly without a configuration.
        """
        super().register_custom_kv_cache_specs(vllm_config)
        if vllm_config is None:
            # This is no engine core, which always registers with its configuration.
            return
        host = adapter()
        if vllm_config.parallel_config.worker_cls == WORKER:
            for patch in host.patches_of_the_engine_core(vllm_config):
                patch.apply()


def _names_of_backends() -> frozenset[str]:
    """Values of vLLM's own option that mean a backend of Ascend."""
    return frozenset(name for entry in catalog.entries() for name in entry.vllm_names)


def _take_kernel_blocks(vllm_config: VllmConfig) -> None:
    """Blocks of vllm-ascend's kernels where nobody asks for any, before a model runner reads them.

    vllm-ascend takes these beside prefix caching or chunked prefill (``refresh_block_size``). With
    neither, vLLM's own 16 tokens stay. On 0.23.0 no backend takes such blocks, and the engine ends.
    On 0.30.0rc2 they become 128 once the model is loaded, when model runner V1 has already read 16:
    43 of 68 tokens of a Llama were wrong without a draft. States make blocks of their own size.
    """
    cache = vllm_config.cache_config
    if cache.user_specified_block_size or vllm_config.model_config.is_hybrid:
        return
    if cache.block_size == cache.DEFAULT_BLOCK_SIZE:
        cache.block_size = KERNEL_BLOCK


def _stay_out_of(worker: str, has_options: bool) -> None:
    """Leave a worker of another kind (310P, xlite, the user's own) as it is, and log that.

    Raises:
        ValueError: options of ours are given, but nothing would honour them there.
    """
    if has_options:
        refuse(
            ValueError(
                f'additional_config["mkv_ascend"] was given, but the worker is {worker}: '
                f"mkv_ascend extends {STOCK_WORKER} only. Remove the mkv_ascend options, or the "
                "setting that selects the other worker (worker_cls, xlite_graph_config, a 310P "
                "device)."
            )
        )
    logger.warning(
        "mkv_ascend leaves the worker %s as it is: backends and layouts are vllm-ascend's own.",
        worker,
    )


# Each process of vLLM imports its platform first. On 0.30.0rc2 the engine core's process makes
# vllm-ascend's configuration, which refuses our options, before vLLM loads general plugins there.
adapter().accept_options()
