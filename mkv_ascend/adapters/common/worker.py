# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's worker with our model runner; an adapter derives from it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vllm_ascend.worker import worker as ascend_worker

from mkv_ascend.adapters.common.drafting.proposers import assembly_of
from mkv_ascend.adapters.common.patches import expert_groups
from mkv_ascend.adapters.patching import override, replaced
from mkv_ascend.adapters.platform_slot import OURS

if TYPE_CHECKING:
    from mkv_ascend.adapters.common.drafting.assembly import Assembly
    from mkv_ascend.attention.report import LayerRow


class HostWorker(ascend_worker.NPUWorker):
    """One NPU's worker process."""

    def apply_patches(self) -> None:
        """Apply what a worker process needs before a model is built."""
        raise NotImplementedError

    def runner_class(self) -> type[Any] | None:
        """The class of our model runner V1; None where the runner stays vllm-ascend's own."""
        return None

    def assembly(self) -> Assembly | None:
        """What serves our draft; None without a draft of ours."""
        return assembly_of(self.model_runner.drafter)

    def layer_rows(self) -> tuple[LayerRow, ...]:
        """Each layer with its backend and its KV group, in the order of creation."""
        rows: tuple[LayerRow, ...] = self.model_runner.layer_rows()
        return rows

    @override(OURS)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.apply_patches()
        super().__init__(*args, **kwargs)

    @override(OURS)
    def init_device(self) -> None:
        """Set the device up and create the model runner.

        vllm-ascend's method takes the runner's class from a global of its module, and does much
        more. Replacing the global during the call keeps all of it.
        """
        ours = self.runner_class() or ascend_worker.NPUModelRunner
        with replaced(ascend_worker, "NPUModelRunner", ours):
            super().init_device()

    @override(expert_groups.EXPERT_GROUP)
    def _init_worker_distributed_environment(self) -> None:
        super()._init_worker_distributed_environment()
        expert_groups.make_for_draft(self.vllm_config)

    def attention_layers(self) -> list[dict[str, Any]]:
        """Which backend serves which layer; for ``collective_rpc("attention_layers")``."""
        return [asdict(row) for row in self.layer_rows()]

    def draft_replays(self) -> dict[str, Any]:
        """Numbers of requests for which the draft's passes are captured, and the number of replays.

        For ``collective_rpc("draft_replays")``.
        """
        assembly = self.assembly()
        graphs = None if assembly is None else assembly.graphs
        if graphs is None:
            return {"captured": [], "replays": 0}
        return {
            "captured": sorted({shape.requests for shape in graphs.captured}),
            "replays": graphs.replays,
        }
