# SPDX-License-Identifier: Apache-2.0
"""The matrix: which cells there are, what is expected of an engine, and what counts as a fault."""

from collections.abc import Sequence
from pathlib import Path

import pytest

import matrix_pages
from benchmarks.matrix import cells, prompts, refusals, running
from benchmarks.matrix.cells import K, find_cells
from benchmarks.matrix.judging import Assessment, Judge, faults
from benchmarks.matrix.lookup import proposed_by_lookup
from benchmarks.matrix.prompts import MIXED
from benchmarks.matrix.running import GRAPH, HITS, OURS, replayed
from tests.support.engine import Result
from tests.support.reference import DraftProposal
from tests.support.speculation import SpeculativeOutput

OUTCOMES = {"works", "refused", "fails"}
IN_GRAPHS = {*OUTCOMES, "draft eager", "eager", None}


def following(context: Sequence[int]) -> int:
    """A target's next token: any function of the whole context."""
    return (3 * sum(context) + len(context)) % 7


def drafted(context: Sequence[int]) -> list[int]:
    """A draft's proposal: wrong where the context's length is a multiple of 3, or of 4."""
    tokens: list[int] = []
    for _ in range(K):
        known = [*context, *tokens]
        wrong = len(known) % 3 == 0 or len(known) % 4 == 0
        tokens.append((following(known) + wrong) % 7)
    return tokens


def decoded(prompt: Sequence[int], count: int) -> SpeculativeOutput:
    """Draft-and-verify with the two functions, one event after the other."""
    tokens, proposals, accepted = [*prompt, following(prompt)], [], [0] * K
    while len(tokens) < len(prompt) + count:
        proposals.append(DraftProposal(list(tokens), drafted(tokens)))
        for position, token in enumerate(drafted(tokens)):
            right = following(tokens)
            tokens.append(right)
            if token != right:
                break
            accepted[position] += 1
        else:
            tokens.append(following(tokens))
    return SpeculativeOutput(
        tokens[len(prompt) : len(prompt) + count], proposals, accepted, smallest_gap=1.0
    )


class ToyJudge(Judge):
    def __init__(self) -> None:
        self.cell, self.workload = find_cells(["dense/dense"])[0], MIXED

    def decode(self, prompt: Sequence[int], count: int) -> SpeculativeOutput:
        return decoded(prompt, count)

    def proposed(self, context: Sequence[int]) -> list[int]:
        return drafted(context)

    def wrong_draft_tokens(self, proposals: Sequence[DraftProposal]) -> int:
        pairs = [(one.tokens, drafted(one.context)) for one in proposals]
        return sum(ours != theirs for pair in pairs for ours, theirs in zip(*pair, strict=True))


def engine_result(prompts: Sequence[list[int]], preempt: tuple[int, int], count: int) -> Result:
    """An engine's loop, with request ``preempt[0]`` preempted before verification ``preempt[1]``.

    Its proposal is then lost and the target goes on by one token from the prefill.
    """
    result = Result(tokens=[], accepted_per_position=[0] * K)
    counted = 0
    for number, prompt in enumerate(prompts):
        tokens = [*prompt, following(prompt)]
        verifications = 0
        while len(tokens) < len(prompt) + count:
            result.proposals.append(DraftProposal(list(tokens), drafted(tokens)))
            if (number, verifications) == preempt and not result.preempted_contexts:
                result.preempted_contexts.append(list(tokens))
                tokens.append(following(tokens))
                continue
            verifications += 1
            counted += 1
            matched = 0
            while matched < K and drafted(tokens)[matched] == following(
                [*tokens, *drafted(tokens)[:matched]]
            ):
                result.accepted_per_position[matched] += 1
                matched += 1
            tokens += drafted(tokens)[:matched]
            tokens.append(following(tokens))
        result.tokens.append(tokens[len(prompt) : len(prompt) + count])
    return Result(**{**vars(result), "num_drafts": counted})


PROMPTS = [[1, 2, 3, 4], [5, 1], [2, 2, 6, 1, 0]]


@pytest.fixture(autouse=True)
def short_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.matrix.prompts.NEW_TOKENS", 12)


@pytest.mark.parametrize("verification", [0, 1, 2, 3])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_a_preemption_changes_is_expected(number: int, verification: int) -> None:
    result = engine_result(PROMPTS, (number, verification), 12)
    assert result.preempted_contexts
    expected = ToyJudge().expectation(PROMPTS, result.preempted_contexts)
    assert faults(ToyJudge(), result, expected) == []
    # The lost proposal matters: without the preemption other proposals are made.
    without = ToyJudge().expectation(PROMPTS, [])
    assert faults(ToyJudge(), result, without)


def changed(**fields: object) -> list[str]:
    right = engine_result(PROMPTS, (1, 1), 12)
    expected = ToyJudge().expectation(PROMPTS, right.preempted_contexts)
    return faults(ToyJudge(), Result(**{**vars(right), **fields}), expected)


def test_each_fault_is_named() -> None:
    right = engine_result(PROMPTS, (1, 1), 12)
    assert changed(tokens=[[0] * 12, *right.tokens[1:]]) == ["1 of 3 requests got other tokens"]
    first = right.proposals[0]
    wrong = DraftProposal(first.context, [first.tokens[0], 9, first.tokens[2]])
    (found,) = changed(proposals=[wrong, *right.proposals[1:]])
    assert found.startswith("1 of ")
    assert changed(proposals=right.proposals[1:])[0].startswith("proposals were made after other")
    assert changed(num_drafts=right.num_drafts + 1)[0].startswith("accepted ")
    assert changed(preempted_contexts=[])[-1].startswith("no request was preempted")


def test_lookup_proposes_what_followed_the_earliest_longest_match() -> None:
    assert proposed_by_lookup([1, 2, 3, 4, 9, 2, 3, 4, 5, 1, 2, 3, 4], 3) == [9, 2, 3]
    assert proposed_by_lookup([1, 2, 3, 1, 2], 3) == [3, 1, 2]
    assert proposed_by_lookup([1, 2, 3, 4], 3) == []


def test_a_crash_is_no_refusal() -> None:
    crash = "Traceback (most recent call last):\n  File x\nIndexError: list index out of range"
    assert refusals.known_refusal(crash) is None
    assert refusals.last_words(crash) == "IndexError: list index out of range"
    refused = "ValueError: the draft keeps a recurrent state in 3 of its layers"
    assert refusals.known_refusal(f"INFO x\n{refused}\n[rank0] bye") is refusals.OURS[0]
    assert refusals.last_words(f"INFO x\n{refused}\n[rank0] bye") == refused
    several = "ValueError: this cannot be served, for 2 reasons:"
    told = (
        f"{several}\n- [mode] of graphs; change it\n- [method] x; change it\n{several}\n- [mode] y"
    )
    assert refusals.last_words(told) == f"{several} [mode], [method]"


def test_the_published_matrix_says_why() -> None:
    published = matrix_pages.read()["cells"]
    places = {(cell["target"], cell["draft"], cell["method"]) for cell in published}
    assert len(places) == len(published)
    assert places <= {(cell.target, cell.draft, cell.method) for cell in cells.all_cells()}
    for cell in published:
        if cell["method"] in cells.UNKNOWN_TO_FIRST_HOST:
            assert (cell["ours"], cell["stock"], cell["graph"]) == (None, None, None)
            assert {host["ours"] for host in cell["hosts"].values()} <= OUTCOMES
            continue
        assert {cell["ours"], cell["stock"]} <= OUTCOMES
        assert cell["graph"] in IN_GRAPHS
        every = [cell["hits"], *(host.get("hits") for host in cell["hosts"].values())]
        assert {*every} <= {*IN_GRAPHS, "no hit"}
        assert bool(cell["reason"]) == (cell["ours"] != "works")
        assert bool(cell["stock_reason"]) == (cell["stock"] != "works")
        if cell["ours"] == "works":
            assert cell["acceptance"] == cell["reference_acceptance"]


REPLAYING = "INFO Replaying aclgraph\n"
EAGER_DRAFT = "INFO The draft runs eagerly, though the target is replayed from graphs: MLA. So.\n"


@pytest.mark.parametrize(
    ("name", "log", "replays", "outcome"),
    [
        ("dense/dense", REPLAYING, 3, ("works", "")),
        ("dense/ngram", REPLAYING, 0, ("works", "")),
        ("dense/ngram", "", 0, ("eager", "lookup found 3 tokens for every request in no step")),
        ("dense/dense", REPLAYING + EAGER_DRAFT, 0, ("draft eager", "MLA")),
        ("dense/dense", REPLAYING, 0, ("fails", "no proposal was replayed")),
        ("dense/dense", EAGER_DRAFT, 3, ("fails", "no step of the target was replayed")),
    ],
)
def test_what_ran_in_graphs_is_told(
    name: str, log: str, replays: int, outcome: tuple[str, str]
) -> None:
    (cell,) = find_cells([name])
    found = replayed(cell, Result(tokens=[], draft_replays=replays, log=log))
    assert found[0] == outcome[0]
    assert found[1].startswith(outcome[1])
    assert "So" not in found[1]


@pytest.fixture(autouse=True)
def _no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained for names, and a token is a character."""
    monkeypatch.setattr(running, "model_directory", Path)
    monkeypatch.setattr(prompts.reference, "token_ids", lambda _, text: [0, *text.encode()])


class Agreeing:
    """A judge who finds no fault."""

    def requests(self) -> list[list[int]]:
        return []

    def assess(self, requests: object, result: object) -> Assessment:
        return Assessment([], 1.0)


@pytest.mark.parametrize(
    ("side", "cached", "outcome"),
    [(HITS, [0, 384], "works"), (HITS, [0, 0], "no hit"), (GRAPH, [0, 0], "works")],
)
def test_requests_without_a_hit_are_an_outcome_of_their_own(
    side: str, cached: list[int], outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Result(
        tokens=[],
        platform="mkv_ascend",
        cached_tokens=cached,
        asynchronous=side == HITS,
        target_replays=1,
        draft_replays=1,
    )
    monkeypatch.setattr(running, "judge_of", lambda cell, side: Agreeing())
    monkeypatch.setattr(running.engine, "run", lambda scenario, timeout: result)
    (cell,) = find_cells(["dense/dense"])
    assert running.run(cell, side).outcome == outcome


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("side", [OURS, HITS])
def test_an_engine_that_was_scheduled_otherwise_gives_no_verdict(
    side: str, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nobody(Agreeing):
        def assess(self, requests: object, result: object) -> Assessment:
            raise AssertionError("judged")

    result = Result(tokens=[], platform="mkv_ascend", asynchronous=asynchronous)
    monkeypatch.setattr(running, "judge_of", lambda cell, side: Nobody())
    monkeypatch.setattr(running.engine, "run", lambda scenario, timeout: result)
    (cell,) = find_cells(["dense/dense"])
    wrong = asynchronous != (side == HITS)
    expected = (RuntimeError, "was not scheduled so") if wrong else (AssertionError, "judged")
    with pytest.raises(expected[0], match=expected[1]):
        running.run(cell, side)
