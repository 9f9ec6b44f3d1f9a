# SPDX-License-Identifier: Apache-2.0
"""The plan of a proposal against a scalar reference in plain loops."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mkv_ascend.drafting.context_shares import ContextShares
from mkv_ascend.drafting.draft import DraftBuffers, TargetOutput
from mkv_ascend.drafting.plan import DraftPlan, Sizes

MAX_TOKENS = 96
COLUMNS = 6


def slot(table, block_size, row, position, max_model_len):
    column = position // block_size
    if position >= max_model_len or column >= len(table[row]):
        return -1
    return table[row][column] * block_size + position % block_size


def later_pass(tables, block_sizes, row, position, max_model_len):
    """Position, length and slots of one request in one pass: the whole rule."""
    if position >= max_model_len:
        return 0, 1, [-1] * len(tables)
    slots = [
        slot(table, size, row, position, max_model_len)
        for table, size in zip(tables, block_sizes, strict=True)
    ]
    return position, position + 1, slots


@st.composite
def proposals(draw):
    requests = draw(st.integers(1, 4))
    groups = draw(st.integers(1, 4))
    max_model_len = draw(st.integers(4, 40))
    computed = draw(
        st.lists(st.integers(0, max_model_len - 1), min_size=requests, max_size=requests)
    )
    given_tokens = draw(st.lists(st.integers(1, 5), min_size=requests, max_size=requests))
    rejected = [draw(st.integers(0, count - 1)) for count in given_tokens]
    tables = [
        [draw(st.lists(st.integers(0, 50), min_size=COLUMNS, max_size=COLUMNS)) for _ in "abcd"]
        for _ in range(groups)
    ]
    block_sizes = draw(st.lists(st.sampled_from([4, 8, 16]), min_size=groups, max_size=groups))
    return {
        "shift": draw(st.booleans()),
        "later_passes": draw(st.integers(1, 4)),
        "max_model_len": max_model_len,
        "computed": computed,
        "given": given_tokens,
        "rejected": rejected,
        "tables": tables,
        "block_sizes": block_sizes,
        "more_rows": draw(st.integers(0, 3)),
        "writes_rejected": draw(st.booleans()),
        "keeps_position": draw(st.booleans()),
    }


def buffers():
    return DraftBuffers(*(torch.full((MAX_TOKENS,), -7, dtype=torch.int32) for _ in range(3)))


def planned(case, shares=None):
    """The plan for the case, its first pass's inputs, and what the target was given."""
    plan = DraftPlan(
        Sizes(
            later_passes=case["later_passes"],
            max_requests=4,
            max_tokens=MAX_TOKENS,
            max_model_len=case["max_model_len"],
            shift=case["shift"],
            writes_rejected=case["writes_rejected"],
            keeps_position=case["keeps_position"],
        ),
        [torch.tensor(table, dtype=torch.int32) for table in case["tables"]],
        case["block_sizes"],
        shares=shares,
    )
    starts = [0]
    positions = []
    for computed, count in zip(case["computed"], case["given"], strict=True):
        positions += range(computed, computed + count)
        starts.append(len(positions))
    lengths = [sum(pair) for pair in zip(case["computed"], case["given"], strict=True)]
    target = TargetOutput(
        token_ids=torch.arange(len(positions), dtype=torch.int32) + 100,
        positions=torch.tensor(positions),
        next_token_ids=torch.arange(len(case["given"])) + 900,
        hidden_states=None,
        num_rejected=torch.tensor(case["rejected"], dtype=torch.int32),
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        query_start_loc_host=torch.tensor(starts, dtype=torch.int32),
        host_lengths=torch.tensor(lengths),
        length_bounds=torch.tensor(lengths),
        longest_row=max(case["given"]),
    )
    inputs = target, buffers()
    return plan, inputs, starts


@settings(max_examples=60, deadline=None)
@given(proposals())
def test_later_passes_are_those_of_the_scalar_reference(case):
    plan, inputs, _ = planned(case)
    plan.expand(*inputs)
    requests = len(case["given"])
    rows = requests + case["more_rows"]
    steps = plan.plan_later(rows, requests)
    for row, (computed, count, rejected) in enumerate(
        zip(case["computed"], case["given"], case["rejected"], strict=True)
    ):
        last_kept = computed + count - rejected - 1
        drafted_from = last_kept if case["shift"] else last_kept + 1
        for step in range(case["later_passes"]):
            ahead = 0 if case["keeps_position"] else step + 1
            position, length, slots = later_pass(
                case["tables"], case["block_sizes"], row, drafted_from + ahead,
                case["max_model_len"],
            )  # fmt: skip
            assert int(steps.positions[step][row]) == position
            assert int(steps.request_positions[step][row]) == position
            assert int(steps.lengths[step][row]) == length
            assert [int(group[row]) for group in steps.slots[step]] == slots
    for step in range(case["later_passes"]):
        assert steps.positions[step].tolist()[requests:] == [0] * case["more_rows"]
        assert steps.all_slots[step, :, requests:].eq(-1).all()


@settings(max_examples=60, deadline=None)
@given(proposals())
def test_the_first_pass_is_that_of_the_scalar_reference(case):
    plan, inputs, starts = planned(case)
    rows = plan.expand(*inputs)
    expected, shift = [], int(case["shift"])
    for row, (computed, count, rejected) in enumerate(
        zip(case["computed"], case["given"], case["rejected"], strict=True)
    ):
        tokens = [100 + starts[row] + index for index in range(count - rejected)][shift:]
        shown = [*tokens, 900 + row]
        behind = computed + len(shown)
        assert int(plan.first_query_start_loc[row]) == len(expected)
        assert int(plan.first_lengths[row]) == computed + count + 1 - shift
        assert int(inputs[1].sample_rows[row]) == len(expected) + len(shown) - 1
        for offset, token in enumerate(shown):
            expected.append((token, row, computed + offset))
        expected += [(None, row, behind + index) for index in range(rejected)]
    assert rows == len(expected)
    for index, value in enumerate(expected):
        slots = plan.first_slots[:, index].tolist()
        token, row, position = value
        if token is None and not case["writes_rejected"]:
            assert slots == [-1] * len(slots)
            continue
        inside = position < case["max_model_len"]
        if token is not None:
            assert int(inputs[1].token_ids[index]) == token
            assert int(inputs[1].positions[index]) == (position if inside else 0)
        assert slots == [
            slot(table, size, row, position, case["max_model_len"])
            for table, size in zip(case["tables"], case["block_sizes"], strict=True)
        ]


def shared_slot(table, block_size, row, position, shares, max_model_len):
    """The slot of a position on the rank of ``shares``, by counting the tokens that it keeps."""
    mine = [p for p in range(position) if p // shares.interleave % shares.ranks == shares.rank]
    kept = position // shares.interleave % shares.ranks == shares.rank
    return slot(table, block_size, row, len(mine), max_model_len) if kept else -1


@settings(max_examples=60, deadline=None)
@given(proposals(), st.integers(2, 3), st.sampled_from([1, 2, 4]), st.integers(0, 2))
def test_ranks_that_share_sequences_write_what_they_keep(case, ranks, interleave, number):
    shares = ContextShares(ranks, number % ranks, interleave)
    whole, inputs, _ = planned(case)
    plan, own_inputs, _ = planned(case, shares)
    rows, requests = whole.expand(*inputs), len(case["given"])
    assert plan.expand(*own_inputs) == rows
    later = whole.plan_later(requests, requests), plan.plan_later(requests, requests)
    # Everything but slots is that of whole sequences.
    assert own_inputs[1].positions.equal(inputs[1].positions)
    assert plan.first_lengths.equal(whole.first_lengths)
    assert later[1].all_positions.equal(later[0].all_positions)
    assert later[1].all_lengths.equal(later[0].all_lengths)
    requests_of_rows = torch.bucketize(
        torch.arange(rows), plan.first_query_start_loc[1 : requests + 1], right=True
    )
    for group, (table, size) in enumerate(zip(case["tables"], case["block_sizes"], strict=True)):
        given_rows = [
            (slots[group], positions, later_requests)
            for slots, positions, later_requests in (
                (plan.first_slots[:, :rows], inputs[1].positions, requests_of_rows),
                *(
                    (slots, positions, torch.arange(requests))
                    for slots, positions in zip(
                        later[1].all_slots, later[0].all_positions, strict=True
                    )
                ),
            )
        ]
        plain = [whole.first_slots[group, :rows], *later[0].all_slots[:, group]]
        for (slots, positions, of), unshared in zip(given_rows, plain, strict=True):
            for index in range(len(slots)):
                if int(unshared[index]) < 0:
                    continue  # Rejected, or behind the table: the whole table has more columns.
                position = int(positions[index])
                if slots is given_rows[0][0]:  # Rejected rows have position 0 there.
                    request = int(of[index])
                    begin = int(plan.first_query_start_loc[request])
                    position = case["computed"][request] + index - begin
                expected = shared_slot(
                    table, size, int(of[index]), position, shares, case["max_model_len"]
                )
                assert int(slots[index]) == expected


def simple_case(**changes):
    return {
        "shift": False, "later_passes": 2, "max_model_len": 40, "computed": [3, 9], "given": [2, 4],
        "rejected": [0, 1], "tables": [[[1] * COLUMNS] * 4], "block_sizes": [8], "more_rows": 0,
        "writes_rejected": False, "keeps_position": False, **changes,
    }  # fmt: skip


@pytest.mark.parametrize("writes_rejected", [False, True])
def test_rows_of_padding_after_the_first_pass_write_to_no_slot(writes_rejected):
    """A graph has rows for more requests than there may be; they hold those of an earlier batch."""
    plan, inputs, _ = planned(simple_case(writes_rejected=writes_rejected))
    own_rows = plan.expand(*inputs)
    plan.first_slots.fill_(7)
    inputs[1].token_ids.fill_(7)
    assert plan.expand(*inputs, own_rows + 5) == own_rows + 5
    assert plan.first_slots[:, own_rows : own_rows + 5].eq(-1).all()
    assert plan.first_slots[:, own_rows + 5 :].eq(7).all()
    assert not plan.first_slots[:, :own_rows].eq(7).any()
    assert plan.expand(*inputs, own_rows - 1) == own_rows


@pytest.mark.parametrize("max_model_len", [23, 24, 25, 40])
def test_rejected_rows_write_up_to_the_ends_of_the_sequence_and_of_the_table(max_model_len):
    """The table ends with token 24: the rows of both requests go beyond one of the two ends."""
    tables = [[list(range(COLUMNS * row, COLUMNS * row + COLUMNS)) for row in range(4)]]
    given = {"computed": [19, 18], "given": [6, 7], "rejected": [5, 6]}
    case = simple_case(
        **given, tables=tables, block_sizes=[4], max_model_len=max_model_len, writes_rejected=True
    )
    plan, inputs, _ = planned(case)
    # Of each request the token that is kept, the one that was sampled, and the rejected ones.
    positions = [*range(19, 26), *range(18, 26)]
    assert plan.expand(*inputs) == len(positions)
    expected = [
        slot(tables[0], 4, int(index >= 7), position, max_model_len)
        for index, position in enumerate(positions)
    ]
    assert plan.first_slots[0, : len(positions)].tolist() == expected
    assert expected.count(-1) == 2 * (26 - min(max_model_len, 24))


def test_a_plan_lies_where_its_tables_lie_whatever_the_default_device_is():
    """What the host reads stays on the host. Hosts set a default device while they load models."""
    case = simple_case(writes_rejected=True)
    plan, inputs, _ = planned(case)
    with torch.device("meta"):
        other = DraftPlan(plan.sizes, plan.block_tables, case["block_sizes"])
    for made in (plan, other):
        made.expand(*inputs)
        made.copy_lengths(made.plan_later(2, 2))
    tensors = {name: value for name, value in vars(plan).items() if torch.is_tensor(value)}
    assert len(tensors) > 10
    for name, value in tensors.items():
        assert vars(other)[name].dtype == value.dtype
        assert vars(other)[name].equal(value)


def test_a_pass_of_padding_alone_writes_to_no_slot():
    plan, inputs, _ = planned(simple_case())
    rope = torch.full((3, MAX_TOKENS), 7)
    buffers = replace(inputs[1], rope_positions=rope)
    plan.first_slots.fill_(7)
    plan.first_lengths.fill_(7)
    buffers.token_ids.fill_(7)
    plan.lay_out_padding(buffers, rows=5, requests=2)
    assert plan.first_lengths.tolist() == [0, 0, 7, 7]
    assert rope.tolist() == [[0] * 5 + [7] * (MAX_TOKENS - 5)] * 3
    # The tokens of earlier batches are of no request here.
    plan.next_positions.fill_(7)
    later = plan.plan_later(2, 0)
    assert not later.all_positions.any()
    assert not later.all_lengths.any()
    assert later.all_slots.eq(-1).all()
    assert plan.first_slots[:, :5].eq(-1).all()
    assert plan.first_slots[:, 5:].eq(7).all()
    assert buffers.token_ids[:6].tolist() == [0] * 5 + [7]


@pytest.mark.parametrize(("sampled", "columns"), [(1, 4), (2, 5), (9, 5), (10, 6), (17, 6)])
def test_tables_have_room_for_rows_behind_the_longest_sequence(sampled, columns):
    """All but one of the rows that a request samples from may lie behind it."""
    sizes = Sizes(1, max_requests=2, max_tokens=64, max_model_len=32, sampled_per_request=sampled)
    plan = DraftPlan(sizes, [torch.zeros(2, 4, dtype=torch.int32)], [8])
    assert [tuple(table.shape) for table in plan.later_passes(2, 2).tables] == [(2, columns)]


def test_requests_of_padding_have_no_keys():
    """Attention that reads lengths on the device does so for all requests of its graph."""
    plan, inputs, _ = planned(simple_case(given=[3, 3], rejected=[0, 0]))
    plan.first_lengths.fill_(7)  # of an earlier batch
    plan.expand(*inputs)
    lengths = plan.first_lengths[:2].tolist()
    plan.pad_first_pass(2, 2)
    assert plan.first_lengths.tolist() == [*lengths, 7, 7]
    plan.pad_first_pass(2, 3)
    assert plan.first_lengths.tolist() == [*lengths, 0, 7]


def test_views_keep_their_addresses():
    """A captured graph reads where it read before."""
    plan, inputs, _ = planned(simple_case())
    plan.expand(*inputs)
    before = plan.plan_later(2, 2)
    addresses = [tensor.data_ptr() for tensor in (*before.positions, *before.lengths)]
    plan.plan_later(1, 1)
    after = plan.plan_later(2, 2)
    assert [tensor.data_ptr() for tensor in (*after.positions, *after.lengths)] == addresses


def test_more_rows_than_the_engine_was_started_for_are_refused_with_numbers():
    plan, inputs, _ = planned(simple_case(given=[MAX_TOKENS - 6, 4], computed=[0, 0]))
    assert plan.expand(*inputs) == MAX_TOKENS
    plan, inputs, _ = planned(simple_case(given=[MAX_TOKENS, 4], computed=[0, 0]))
    with pytest.raises(ValueError, match=r"102 rows for 100 tokens of 2 requests; .* 96\."):
        plan.expand(*inputs)
