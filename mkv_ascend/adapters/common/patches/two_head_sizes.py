# SPDX-License-Identifier: Apache-2.0
"""Models whose layers have heads of two sizes (Gemma 4: windows of 256, full attention of 512).

In every step vllm-ascend fills rows of cosines and sines for the whole process. They are as wide as
the model's largest head, but come from the rotary module that was made first, which may belong to
another layer. The step then ends in a RuntimeError. Layers other than MLA rotate by their own
tables and never read these rows.
"""

from __future__ import annotations

from mkv_ascend.adapters.patching import record

ROWS = record(
    name="heads of two sizes",
    target=(
        "vllm_ascend.ops.rotary_embedding:_cos",
        "vllm_ascend.ops.rotary_embedding:_sin",
    ),
    reads=("vllm_ascend.ops.rotary_embedding:update_cos_sin",),
)


def drop_rows_of_other_sizes() -> None:
    """Stop filling rows of a size that the recorded table lacks; call this after a load."""
    from vllm_ascend.ops import rotary_embedding

    table, rows = rotary_embedding._cos_sin_cache, rotary_embedding._cos
    if table is None or rows is None or table.shape[-1] == rows.shape[-1]:
        return
    rotary_embedding._cos = rotary_embedding._sin = None
