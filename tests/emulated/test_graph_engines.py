# SPDX-License-Identifier: Apache-2.0
"""Engines in ACL graphs: the tokens are Hugging Face's, and graphs were really replayed."""

import pytest

from mkv_ascend.testing import engine
from tests.emulated.pairs import assert_greedy_tokens_of_reference, scenario


def run_in_graphs(name, mode, **fields):
    """An engine in graphs, with batches on, between and past the captured sizes."""
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 6}
    case = scenario(name, graphs=mode, capture_sizes=(1, 2, 4), engine=limits, repeats=2, **fields)
    result = engine.run(case)
    assert "Replaying aclgraph" in result.log
    assert_greedy_tokens_of_reference(case, result)
    return result


@pytest.mark.parametrize("name", ["llama_target"])
def test_decoding_in_full_graphs(name):
    run_in_graphs(name, "FULL_DECODE_ONLY")
