# SPDX-License-Identifier: Apache-2.0
"""MkvWorker: vllm-ascend's worker with our model runner and our patches, on every host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_ascend.worker.worker import NPUWorker

from mkv_ascend.adapters.common import graphs, start_up
from mkv_ascend.adapters.common.drafting.proposers import assembly_of
from mkv_ascend.adapters.common.failed_ranks import ending_unheard
from mkv_ascend.adapters.common.runner import HOST
from mkv_ascend.adapters.common.sleeping import SleepingDraft
from mkv_ascend.adapters.installed import adapter
from mkv_ascend.adapters.patching import override, replaced
from mkv_ascend.adapters.platform_slot import OURS

if TYPE_CHECKING:
    from mkv_ascend.adapters.common.drafting.assembly import Assembly


class MkvWorker(NPUWorker):
    """One NPU's worker process."""

    @override(OURS)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        adapter().patch_worker()
        super().__init__(*args, **kwargs)
        self.sleeping_draft = SleepingDraft()

    @override(OURS)
    def init_device(self) -> None:
        """Set the device up and create the model runner.

        vllm-ascend's method takes the runner's class from a global of a module, and does much more.
        Replacing the global during the call keeps all of it.
        """
        module, ours = adapter().model_runner(self.vllm_config)
        with replaced(module, "NPUModelRunner", ours):
            super().init_device()

    @override(graphs.GRAPH_MEMORY)
    def determine_available_memory(self) -> int:
        """As vllm-ascend's, less what graphs will take; ends as ``execute_model`` does."""
        with ending_unheard(self, starting=True):
            return graphs.left_by_graphs(
                self,
                super().determine_available_memory,
                lambda: int(self.model_runner.profile_cudagraph_memory()),
            )

    @override(OURS)
    def compile_or_warm_up_model(self) -> Any:
        """As vllm-ascend's; then say what this worker serves, and count from now on."""
        with ending_unheard(self, starting=True):
            return start_up.warm_up(self, super().compile_or_warm_up_model)

    @override(OURS)
    def execute_model(self, scheduler_output: Any) -> Any:
        """As vllm-ascend's; a rank that nobody hears does not outlive its failure."""
        with ending_unheard(self):
            return super().execute_model(scheduler_output)

    @override(OURS)
    def sample_tokens(self, grammar_output: Any) -> Any:
        """As vllm-ascend's, the draft's passes in it; ends as ``execute_model`` does."""
        with ending_unheard(self):
            return super().sample_tokens(grammar_output)

    @override(OURS)
    def sleep(self, level: int = 1) -> None:
        """As vllm-ascend's, which knows neither the draft's graphs nor, at level 2, its weights."""
        runner, assembly = self.model_runner, self.assembly() if HOST.graphs_sleep() else None
        proposer = getattr(runner, "drafter", None)
        self.sleeping_draft.fall_asleep(level, runner, proposer, assembly)
        super().sleep(level)

    @override(OURS)
    def wake_up(self, tags: list[str] | None = None) -> None:
        """As vllm-ascend's; then caches and the draft are as they were."""
        super().wake_up(tags)
        self.sleeping_draft.wake_up(tags, self.model_runner.kv_caches)

    @override(OURS)
    def update_max_model_len(self, max_model_len: int) -> None:
        """As vllm-ascend's, whose block tables end there; a draft must not read behind them."""
        super().update_max_model_len(max_model_len)
        drafter: Any = getattr(self.model_runner, "drafter", None)
        if hasattr(drafter, "max_model_len"):
            drafter.max_model_len = max_model_len

    @override(OURS)
    def start_weight_update(self, *args: Any, **kwargs: Any) -> None:
        """Begin new weights of the target, whatever the last ones were for."""
        if HOST.draft_weights is not None:
            HOST.draft_weights.aim(self)
        super().start_weight_update(*args, **kwargs)

    @override(OURS)
    def finish_weight_update(self) -> None:
        """As vllm-ascend's; then what a draft makes of its weights is made of the new ones."""
        if HOST.draft_weights is None:
            super().finish_weight_update()
            return
        with HOST.draft_weights.finishing(self):
            super().finish_weight_update()

    def start_draft_weight_update(self) -> None:
        """Begin new weights of the draft, as ``start_weight_update`` does for the target.

        Raises:
            NotImplementedError: the host cannot, or nothing drafts here.
            RuntimeError: the draft sleeps.
        """
        if HOST.draft_weights is None:
            raise NotImplementedError(
                "new weights for a draft (start_draft_weight_update) were asked for; this vLLM "
                "sends weights to the target alone. Start the engine anew with the new draft."
            )
        HOST.draft_weights.aim_at_draft(self, getattr(self.model_runner, "drafter", None))
        super().start_weight_update()

    def served(self) -> start_up.Served:
        """What this worker serves."""
        return self.model_runner.served()

    def assembly(self) -> Assembly | None:
        """What serves our draft; None without a draft of ours."""
        return assembly_of(getattr(self.model_runner, "drafter", None))

    def attention_layers(self) -> list[dict[str, Any]]:
        return start_up.attention_layers(self.model_runner.layer_rows())

    def draft_replays(self) -> dict[str, Any]:
        return start_up.draft_replays(self.assembly())
