# SPDX-License-Identifier: Apache-2.0
"""Models whose layers have heads of two sizes (Gemma 4: windows of 256, full attention of 512).

vLLM asks for a backend of another vendor's devices there, so that all layers have the same one.
vllm-ascend forgets what was asked for; who reads it before must not take it for the user's. And it
fills rotary rows for the whole process in every step, as wide as the model's largest head, from the
table of the rotary module that was made first, which may be another layer's: the step ends in a
RuntimeError. Layers that are not latent attention rotate by their own tables and read none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mkv_ascend.adapters.guards import expect

if TYPE_CHECKING:
    from vllm.config import VllmConfig

PATCH = "heads of two sizes"


def install() -> None:
    """Have vLLM ask for no backend because of unlike head sizes. Idempotent."""
    # Not with this module, which the platform imports: vLLM's models need the platform.
    from vllm.model_executor.models import config

    gemma = config.Gemma4Config
    expect(
        set(vars(gemma)) & {"verify_and_update_config", "verify_and_update_model_config"}
        == {"verify_and_update_config"},
        PATCH,
        "Gemma4Config does more than choose a backend",
    )
    gemma.verify_and_update_config = staticmethod(_choose_no_backend)


def _choose_no_backend(vllm_config: VllmConfig) -> None:
    """Each layer chooses its own."""


def drop_rows_of_other_sizes() -> None:
    """Fill no rows of a size that the recorded table does not have; after a model was loaded."""
    from vllm_ascend.ops import rotary_embedding

    table, rows = rotary_embedding._cos_sin_cache, rotary_embedding._cos
    if table is None or rows is None or table.shape[-1] == rows.shape[-1]:
        return
    rotary_embedding._cos = rotary_embedding._sin = None
