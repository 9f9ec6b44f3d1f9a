# SPDX-License-Identifier: Apache-2.0
"""Every draft token of every strategy, eagerly and replayed, against plain loops."""

import pytest
import torch

from tests.unit.drafting.fake_engine import MOST_LENGTH, Case, Engine

KINDS = ("attention", "head", "recurrent", "mask", "anchor")
GROUPS = {
    1: ((4,), (True,), (False,)),
    2: ((4, 8), (True, True), (False, True)),
    3: ((8, 4, 16), (True, False, True), (False, True, False)),
    4: ((4, 4, 8, 16), (True, True, True, True), (True, False, True, False)),
    5: ((4, 8, 16, 8, 4), (False, True, True, False, True), (False, True, False, False, True)),
}


@torch.inference_mode()
def drafted_right(case: Case, seed: int, graphs: tuple[int, ...] = (), steps: int = 30) -> Engine:
    engine = Engine(case, seed, graphs)
    for number in range(steps):
        engine.step(verify_only=bool(graphs) and number % 3 == 2)
    assert engine.judged > 3 * case.k
    return engine


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("k", [1, 3, 7])
def test_every_draft_token_eagerly(kind: str, groups: int, k: int) -> None:
    drafted_right(Case(kind, k, *GROUPS[groups]), seed=groups)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", range(1, 16))
def test_every_number_of_draft_tokens(kind: str, k: int) -> None:
    drafted_right(Case(kind, k, *GROUPS[2]), seed=k, steps=12)


@pytest.mark.parametrize("kind", ["attention", "head", "recurrent"])
@pytest.mark.parametrize("on_device", [1, 2])
def test_the_host_waits_only_for_lengths_that_it_hands_over(kind: str, on_device: int) -> None:
    """Where all groups take lengths on the device it neither copies them nor waits."""
    engine = drafted_right(Case(kind, 4, *GROUPS[2], on_device=on_device), seed=on_device)
    assert engine.copied.recorded == engine.copied.waited_for == engine.plan.host_reads
    assert (engine.copied.waited_for > 10) == (on_device < 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("k", [1, 2, 5, 15])
def test_every_draft_token_replayed_with_padding(kind: str, groups: int, k: int) -> None:
    """Graphs for 2 and 4 requests: batches of 1 and 3 are padded with rows of earlier batches."""
    engine = drafted_right(Case(kind, k, *GROUPS[groups]), seed=k, graphs=(2, 4), steps=36)
    assert engine.graphs.replays > 3


@pytest.mark.parametrize("kind", ["attention", "head"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("on_device", [0, 1])
def test_every_draft_token_in_step_with_another_rank(
    kind: str, groups: int, k: int, on_device: int
) -> None:
    """The graph is that of the rank with most requests. A rank without any runs padding alone,
    which leaves no trace in caches. Later passes that run eagerly are as long as the first."""
    case = Case(kind, k, *GROUPS[groups], on_device=on_device, in_step=True)
    engine = drafted_right(case, seed=k, graphs=(2, 4), steps=60)
    assert engine.graphs.replays > 12


@pytest.mark.parametrize("kind", ["attention", "head", "recurrent"])
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("on_device", [2, 3])
def test_metadata_that_a_graph_builds(kind: str, k: int, on_device: int) -> None:
    """The second group's is built anew for each pass, from what the device holds: no replay may
    find the positions of the capture. The host knows bounds of lengths, in graphs the largest."""
    case = Case(kind, k, *GROUPS[3], on_device=on_device)
    engine = drafted_right(case, seed=k, graphs=(2, 4), steps=60)
    assert engine.graphs.replays > 5
    builder = engine.draft.builders[1]
    assert (builder.builds_in_graphs, engine.draft.builders[0].builds_in_graphs) == (True, False)
    for captured in engine.graphs.captured.values():
        _, *built = (passes.first["layers.1"] for passes in captured.passes)
        assert all(
            attention.bounds.tolist() == [MOST_LENGTH] * captured.requests for attention in built
        )
    # The third group takes lengths on the host, or none does.
    assert (engine.copied.waited_for > 10) == (
        on_device == 2 and bool(engine.plan.sizes.later_passes)
    )


@pytest.mark.parametrize("kind", ["attention", "head", "recurrent"])
@pytest.mark.parametrize("graphs", [(), (1, 2, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_every_draft_token_where_their_number_changes(
    kind: str, graphs: tuple[int, ...], seed: int
) -> None:
    """A step verifies what the one before drafted, and drafts another number."""
    case = Case(kind, 4, *GROUPS[2], counts=(0, 1, 4))
    engine = drafted_right(case, seed, graphs, steps=90)
    assert (engine.graphs.replays > 10) == bool(graphs)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("k", [2, 4])
def test_parallel_drafting(groups: int, k: int) -> None:
    drafted_right(Case("attention", k, *GROUPS[groups], parallel=True), seed=groups)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("k", [2, 5])
def test_parallel_drafting_replayed_with_padding(groups: int, k: int) -> None:
    case = Case("attention", k, *GROUPS[groups], parallel=True)
    assert drafted_right(case, seed=k, graphs=(2, 4), steps=36).graphs.replays > 3


@pytest.mark.parametrize("kind", [*KINDS, "parallel"])
@pytest.mark.parametrize("graphs", [(), (4,)])
@pytest.mark.parametrize("max_model_len", [16, 18])
def test_drafts_past_the_longest_sequence(
    kind: str, graphs: tuple[int, ...], max_model_len: int
) -> None:
    """There a row has position 0, one key of its own pass, and writes nothing.

    The block tables end with the longest sequence, which fills its blocks or does not.
    """
    parallel = kind == "parallel"
    case = Case(
        "attention" if parallel else kind,
        6 if parallel else 5,  # so that five rows lie behind blocks of four tokens
        *GROUPS[2],
        max_model_len=max_model_len,
        parallel=parallel,
    )
    drafted_right(case, seed=3, graphs=graphs, steps=60)
