# SPDX-License-Identifier: Apache-2.0
"""In what a draft's passes run on model runner V2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from vllm.forward_context import BatchDescriptor, set_forward_context
from vllm_ascend.ascend_forward_context import _EXTRA_CTX

from mkv_ascend.drafting.draft import Metadata, PassBatch


class PassesOfRunnerV2:
    """``PassContext`` of model runner V2, on one rank of data parallelism."""

    def share_rows(self, proposer: Any, rows: int) -> tuple[int, torch.Tensor | None]:
        """See ``Draft``."""
        return rows, None

    def runs_in_step(self, proposer: Any) -> bool:
        """See ``PassContext``."""
        return False

    @contextlib.contextmanager
    def running(self, proposer: Any, metadata: Metadata | None, batch: PassBatch) -> Iterator[None]:
        """See ``Draft``."""
        with self.running_rows(proposer, metadata, batch.input_rows):
            yield

    @contextlib.contextmanager
    def running_rows(self, proposer: Any, metadata: Metadata | None, rows: int) -> Iterator[None]:
        """The forward context of a pass of ``rows`` rows."""
        with set_forward_context(
            metadata,
            proposer.vllm_config,
            num_tokens=rows,
            batch_descriptor=BatchDescriptor(num_tokens=rows),
        ):
            # Launches of MLA are noted apart from the target's by it.
            _EXTRA_CTX.is_draft_model = True
            yield


PASSES = PassesOfRunnerV2()
