# SPDX-License-Identifier: Apache-2.0
"""Engines in ACL graphs: the tokens are Hugging Face's, and graphs were really replayed.

FULL_DECODE_ONLY of untraced models is with drafts, in test_draft_graphs.py.
"""

import pytest

from tests.support import engine
from tests.support.pairs import assert_greedy_tokens_of_reference, scenario

pytestmark = pytest.mark.host("0.23")

LIMITS = {"max_num_batched_tokens": 64, "max_num_seqs": 6}


def run_in_graphs(name, mode, **fields):
    """An engine in graphs, with batches on, between and past the captured sizes."""
    fields["engine"] = {**LIMITS, **fields.get("engine", {})}
    case = scenario(name, graphs=mode, capture_sizes=(1, 2, 4), **fields)
    result = engine.run(case)
    assert engine.replayed(result.log)
    assert_greedy_tokens_of_reference(case, result)


def test_prefill_and_decoding_in_full_graphs():
    run_in_graphs("gemma3", "FULL")


@pytest.mark.parametrize("mode", ["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"])
def test_a_traced_model(mode):
    """The first is what ``vllm serve`` takes by itself; the second compiles by npugraph_ex."""
    run_in_graphs("llama_target", mode, traced=True)


def test_collectives_in_graphs():
    run_in_graphs("qwen3_moe", "FULL_DECODE_ONLY", engine={"tensor_parallel_size": 2})
