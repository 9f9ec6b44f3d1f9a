# SPDX-License-Identifier: Apache-2.0
"""MkvWorker: the worker of vllm-ascend 0.30.0rc2, with our model runner and our patches."""

from __future__ import annotations

from mkv_ascend.adapters.common.worker import HostWorker
from mkv_ascend.adapters.vllm_ascend_0_30.v1.patches import in_worker
from mkv_ascend.adapters.vllm_ascend_0_30.v1.runner import MkvModelRunner


class MkvWorker(HostWorker):
    """One NPU's worker process."""

    def apply_patches(self) -> None:
        """See the base."""
        in_worker.apply()

    def runner_class(self) -> type[MkvModelRunner]:
        """See the base."""
        return MkvModelRunner
