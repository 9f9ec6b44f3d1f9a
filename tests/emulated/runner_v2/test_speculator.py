# SPDX-License-Identifier: Apache-2.0
"""What a speculator of model runner V2 makes of the runner's step, without an engine."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support import hosts
from tests.support.draft_facts import facts

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")

import vllm_ascend.ops  # noqa: E402, F401  before the rest of it: its modules import in a circle

from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.speculator import (  # noqa: E402
    MkvSpeculator,
)
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.target_output import (  # noqa: E402
    Step,
    target_output,
)

pytestmark = pytest.mark.core


def step(computed, scheduled, prompts, sampled, rows=(4, 0, 2)):
    """A step of three requests, whose rows in the engine's tables are ``rows``."""
    starts = np.cumsum([0, *scheduled]).astype(np.int32)
    tokens, padding = int(starts[-1]), 3
    lengths = np.array(computed, np.int32) + np.array(scheduled, np.int32)
    batch = SimpleNamespace(
        num_reqs=3,
        num_tokens=tokens,
        idx_mapping=torch.tensor(rows),
        num_scheduled_tokens=np.array(scheduled),
        query_start_loc_np=np.append(starts, starts[-1]),
        query_start_loc=torch.from_numpy(np.append(starts, starts[-1])),
        seq_lens_np=lengths,
        seq_lens=torch.from_numpy(lengths),
        seq_lens_cpu_upper_bound=torch.from_numpy(lengths),
        num_computed_tokens_np=np.array(computed),
        prefill_len_np=np.array(prompts),
        is_prefilling_np=np.array(computed) < np.array(prompts),
        input_ids=torch.arange(tokens + padding, dtype=torch.int32),
        positions=torch.arange(tokens + padding),
        attn_state=None,
    )
    return Step(
        batch,
        hidden_states=torch.rand(tokens + padding, 2),
        auxiliary_states=None,
        num_sampled=torch.tensor(sampled, dtype=torch.int32),
        num_rejected=torch.tensor([0, 1, 0], dtype=torch.int32),
        last_sampled=torch.arange(100, 106).view(6, 1),
        next_prompt_tokens=torch.arange(200, 206, dtype=torch.int32).view(1, 6),
    )


def test_the_next_token_is_the_sampled_one_of_each_requests_own_row():
    made = target_output(step([9, 9, 9], [4, 4, 4], [5, 6, 13], [2, 3, 1]))
    assert made.next_token_ids.tolist() == [104, 100, 102]


def test_inside_a_prompt_the_next_token_is_the_prompts():
    made = target_output(step([9, 0, 4], [4, 4, 1], [5, 6, 5], [2, 0, 1]))
    assert made.next_token_ids.tolist() == [104, 200, 102]


def test_padding_of_the_targets_graph_is_left_out():
    given = step([9, 9, 9], [4, 1, 4], [5, 6, 5], [2, 1, 1])
    made = target_output(given)
    assert made.token_ids.shape == made.positions.shape == (9,)
    assert torch.equal(made.hidden_states, given.hidden_states[:9])
    assert made.query_start_loc.tolist() == made.query_start_loc_host.tolist() == [0, 4, 5, 9]
    assert made.host_lengths.tolist() == [13, 10, 13]
    assert made.longest_row == 4


def test_the_longest_row_is_found_wherever_it_stands():
    for scheduled in ([4, 1, 2], [1, 4, 2], [1, 2, 4]):
        made = target_output(step([9, 9, 9], scheduled, [5, 6, 5], [1, 1, 1]))
        assert made.longest_row == 4


def test_states_of_several_layers_are_joined_in_their_order():
    given = step([9, 9, 9], [4, 1, 4], [5, 6, 5], [2, 1, 1])
    layers = [torch.full((12, 2), float(layer)) for layer in (3, 1)]
    made = target_output(Step(**{**vars(given), "auxiliary_states": layers}))
    assert made.hidden_states.shape == (9, 4)
    assert made.hidden_states[0].tolist() == [3, 3, 1, 1]


@pytest.mark.parametrize(("tokens", "most"), [((40, 3), 48), ((60, 3), 64)])
def test_rows_of_all_ranks_stay_within_what_a_traced_draft_takes(tokens, most):
    """One rank has the most tokens and another the most requests; vLLM traces up to 64 rows."""
    sync = SimpleNamespace(num_reqs=8, num_tokens_across_dp=torch.tensor(tokens))
    speculator = SimpleNamespace(
        dp_sync=sync, method="draft_model", facts=facts(), max_num_tokens=64
    )
    assert MkvSpeculator.most_rows_of_a_rank(speculator) == most
