# SPDX-License-Identifier: Apache-2.0
"""Options of vllm-ascend 0.30.0 that its own proposals serve, and ours do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def refuse_options(
    config: VllmConfig, draft_window_size: int | None, *, draws: bool = False
) -> None:
    """Refuse options that a proposal over several KV groups does not serve.

    Args:
        draws: whether a draft's tokens may be drawn at random.

    Raises:
        NotImplementedError: what was asked for, what is possible, and what to change.
    """
    speculative = config.speculative_config
    refusals = {
        "draft_sample_method: probabilistic: a draft's tokens are its most likely ones. Leave it "
        "out, or say greedy": not draws and speculative.draft_sample_method == "probabilistic",
        "use_heterogeneous_vocab: draft tokens are handed over as they are. Leave it out, and "
        "choose a draft with the target's vocabulary": speculative.use_heterogeneous_vocab,
        "additional_config: draft_window_size: each layer of a draft has the window of its own "
        "configuration. Leave it out": draft_window_size is not None,
    }
    for reason, asked in refusals.items():
        if asked:
            raise NotImplementedError(f"speculative decoding with {reason}.")
