# SPDX-License-Identifier: Apache-2.0
"""Which backend serves a group of layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_ascend.attention.attention_v1 import AscendAttentionMetadataBuilder
from vllm_ascend.attention.dsa_v1 import AscendDSAMetadataBuilder
from vllm_ascend.attention.mla_v1 import AscendMLAMetadataBuilder

from mkv_ascend.adapters.common.backends.dense import Dense
from mkv_ascend.adapters.common.backends.flash_attention_3 import FlashAttention3
from mkv_ascend.adapters.common.backends.mla import MLA
from mkv_ascend.adapters.common.backends.port import Backend
from mkv_ascend.adapters.common.backends.window_of_keys import WindowOfKeys

Backends = Mapping[type[Any], tuple[type[Backend], ...]]
"""Class of builders -> its backends, of which the first that serves a builder is taken.

Subclasses made by ``derive`` only narrow what the builder sees, so they have their base's."""

BACKENDS: Backends = {
    AscendAttentionMetadataBuilder: (FlashAttention3, Dense),
    AscendMLAMetadataBuilder: (MLA,),
    AscendDSAMetadataBuilder: (WindowOfKeys,),
}
"""Those of all hosts."""


def backend_of(
    table: Backends,
    builder: Any,
    spec: Any,
    of_layers: type[Any] | None = None,
    **of_draft: Any,
) -> Backend:
    """The backend of a group of layers; one that shares nothing if the builder is not known.

    For the arguments see ``Backend``.
    """
    known = [found for base in type(builder).__mro__ for found in table.get(base, ())]
    for found in known:
        if found.serves(builder, of_layers):
            return found(builder, spec, of_layers=of_layers, **of_draft)
    why = known[0].unserved if known else None
    return Backend(builder, spec, of_layers=of_layers, why_unserved=why, **of_draft)
