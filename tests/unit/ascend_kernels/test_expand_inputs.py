# SPDX-License-Identifier: Apache-2.0
"""The AscendC kernel of ``expand_inputs`` on the CPU: as plain loops, and without a problem."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.ops.expand_inputs import ExpandInputs
from tests.support.ops import plain
from tests.support.ops.batches import groups, make_groups, seeded, some
from tests.support.ops.expand_batches import (
    PADDING_TOKEN,
    PARALLEL_TOKEN,
    as_arguments,
    expect,
    random_batch,
)
from tests.unit.ascend_kernels import launches

pytestmark = pytest.mark.packaging

INDEX_DTYPES = st.sampled_from((torch.int32, torch.int64))


@some
@given(
    data=st.data(),
    lengths=st.lists(st.one_of(st.integers(1, 9), st.just(700)), max_size=8),
    sampled=st.integers(1, 4),
    shift=st.booleans(),
    padding=st.tuples(st.integers(0, 3), st.sampled_from((0, 1, 9, 600))),
    max_model_len=st.integers(1, 1500),
    rope=st.booleans(),
    dtypes=st.tuples(INDEX_DTYPES, INDEX_DTYPES),
    cores=st.sampled_from((1, 2, 7, 40)),
    seed=st.integers(0, 2**31),
)
def test_as_plain_loops(
    data: st.DataObject,
    lengths: list[int],
    sampled: int,
    shift: bool,
    padding: tuple[int, int],
    max_model_len: int,
    rope: bool,
    dtypes: tuple[torch.dtype, torch.dtype],
    cores: int,
    seed: int,
) -> None:
    generator = seeded(seed)
    made = data.draw(groups(len(lengths), generator))
    rejections = [data.draw(st.integers(0, min(length - 1, 5))) for length in lengths]
    batch = random_batch(generator, lengths, rejections, max_model_len)
    arguments = as_arguments(
        batch, made, sampled, shift, max_model_len, padding_requests=padding[0],
        padding_rows=padding[1], rope=rope, dtype=dtypes[0],
        out_dtype=dtypes[1],
    )  # fmt: skip
    launches.expand_inputs(arguments, cores=cores, seed=seed).require_clean()
    wanted = plain.expand_inputs(
        batch, sampled, shift, max_model_len, [table.tolist() for table in made.tables],
        made.block_sizes, PADDING_TOKEN, PARALLEL_TOKEN,
    )  # fmt: skip
    expect(arguments, wanted)


@dataclass(frozen=True)
class Example:
    """A batch that needs no luck to reach a path of the kernel, on one core by default.

    Attributes:
        lengths, rejections: of each request.
        blocks: columns and block size of each KV group.
        missing: requests that the block tables have no row for.
        padding: requests and rows.
    """

    lengths: list[int]
    rejections: list[int]
    blocks: list[tuple[int, int]]
    sampled: int = 1
    shift: bool = False
    max_model_len: int = 10_000
    positions_below: int = 900
    missing: int = 0
    padding: tuple[int, int] = (0, 0)
    axes: int = 3
    cores: int = 1


SINGLES = [1] * 300
EXAMPLES = {
    # A tile of 256 rows has as many requests; four of five groups fit at once.
    "a request per row": Example(SINGLES, [0] * 300, [(80, 128)] * 5, shift=True, axes=5),
    # The first positions of a tile's requests fill their buffer to the last.
    "behind a long one": Example([769, *SINGLES], [0] * 301, [(80, 128)], shift=True),
    "a long one at the end": Example(
        [1 + index % 5 for index in range(300)] + [9000], [index % 5 // 2 for index in range(301)],
        [(80, 128), (700, 16)], sampled=8,
    ),
    # First positions lie far apart: each is loaded alone.
    "long ones": Example([40, 77] * 9, [3, 0] * 9, [(80, 128), (80, 128), (400, 3), (9, 544)]),
    # In later tiles, rows count on from a token of an earlier one.
    "all but one rejected": Example([700, 3, 600], [699, 2, 590], [(80, 128)], sampled=3),
    "many sampled": Example([2, 900, 1], [1, 0, 0], [(80, 128)], sampled=700, shift=True),
    "tables too small": Example(
        [300, 5, 260, 7, 9], [0, 1, 0, 2, 3], [(3, 128), (80, 128), (200, 2), (40, 1)], missing=2
    ),
    "past the maximum length": Example(
        [300, 5, 260], [0, 1, 0], [(80, 128), (80, 16)], sampled=2, max_model_len=500,
        positions_below=499,
    ),
    "more groups than at once": Example([5, 3], [1, 0], [(80, 128)] * 9 + [(90, 100)] * 2),
    "padding": Example([5, 3], [1, 0], [(80, 128)], sampled=2, padding=(300, 900)),
    "only padding": Example([], [], [(80, 128)], sampled=3, padding=(3, 300)),
    "nothing": Example([], [], [(80, 128)]),
    "many cores": Example(
        [1 + index % 9 for index in range(256)], [0] * 256, [(80, 128), (80, 128)], sampled=3,
        padding=(64, 77), cores=40,
    ),
}  # fmt: skip


def run(
    example: Example, dtypes: tuple[torch.dtype, torch.dtype], **given: torch.Tensor | None
) -> tuple[ExpandInputs, plain.Expanded]:
    """The arguments after the launch, and what plain loops make of the batch."""
    generator = seeded(3)
    columns, sizes = [list(items) for items in zip(*example.blocks, strict=True)]
    rows = max(len(example.lengths) - example.missing, 0)
    made = make_groups(generator, rows, columns, sizes)
    batch = random_batch(
        generator, example.lengths, example.rejections, example.positions_below, example.axes
    )
    arguments = as_arguments(
        batch, made, example.sampled, example.shift, example.max_model_len,
        padding_requests=example.padding[0], padding_rows=example.padding[1], dtype=dtypes[0],
        out_dtype=dtypes[1],
    )._replace(**given)  # fmt: skip
    launches.expand_inputs(arguments, cores=example.cores).require_clean()
    if arguments.num_rejected is None:
        batch = replace(batch, rejected=[0] * len(example.lengths))
    wanted = plain.expand_inputs(
        batch, example.sampled, example.shift, example.max_model_len,
        [table.tolist() for table in made.tables], made.block_sizes, PADDING_TOKEN, PARALLEL_TOKEN,
    )  # fmt: skip
    return arguments, wanted


@pytest.mark.parametrize("dtypes", [(torch.int32, torch.int64), (torch.int64, torch.int32)])
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    expect(*run(EXAMPLES[name], dtypes))


def test_without_what_may_be_left_out() -> None:
    example = Example([300, 4], [0, 0], [(80, 128)], sampled=2)
    arguments, wanted = run(
        example, (torch.int32, torch.int32), num_rejected=None, rope_positions=None,
        out_rope_positions=None, hidden_rows=None,
    )  # fmt: skip
    expect(arguments._replace(hidden_rows=torch.tensor(wanted.hidden_rows)), wanted)


@pytest.mark.parametrize("rows", [0, 5, 260])
def test_rows_that_do_not_fit_are_not_written(rows: int) -> None:
    """What there is once per request is, also of those whose rows all lie behind."""
    example = Example([300, 4], [7, 0], [(80, 128)], sampled=2)
    whole, wanted = run(example, (torch.int32, torch.int64))
    names = ("out_token_ids", "out_positions", "rejected_mask", "masked_mask", "slots",
             "out_rope_positions")  # fmt: skip
    kept = {name: getattr(whole, name)[..., :rows].clone() for name in names}
    for name in names:
        getattr(whole, name).fill_(9)
    cut = whole._replace(**{name: getattr(whole, name)[..., :rows] for name in names})
    launches.expand_inputs(cut, cores=1).require_clean()
    for name in names:
        assert torch.equal(getattr(cut, name), kept[name])
        assert (getattr(whole, name)[..., rows:] == 9).all()
    assert cut.sample_indices.tolist() == wanted.sample_indices
    assert cut.next_positions.tolist() == wanted.next_positions
