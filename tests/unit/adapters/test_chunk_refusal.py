# SPDX-License-Identifier: Apache-2.0
"""Models whose layers attend in chunks are refused with what there is and what to choose."""

from types import SimpleNamespace

import pytest

from mkv_ascend.adapters.common.early_checks.chunk_refusal import refuse_chunks
from mkv_ascend.attention.selection import SelectionError


def test_layers_of_chunks_are_refused():
    model = SimpleNamespace(model="llama-4", attention_chunk_size=8192)
    with pytest.raises(SelectionError, match=r"llama-4 attend in chunks of 8192 .*no b.*Choose"):
        refuse_chunks(model)


def test_other_models_pass():
    refuse_chunks(SimpleNamespace(model="llama-3", attention_chunk_size=None))
