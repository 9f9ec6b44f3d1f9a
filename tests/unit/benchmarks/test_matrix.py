# SPDX-License-Identifier: Apache-2.0
"""The matrix: which cells there are, what is expected of an engine, and what counts as a fault."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import matrix_pages
import pytest

from benchmarks.matrix import __main__ as program
from benchmarks.matrix import cells, families, progress, refusals, running, store, table
from benchmarks.matrix.cells import K, find_cells
from benchmarks.matrix.judging import Judge, faults
from benchmarks.matrix.lookup import proposed_by_lookup
from benchmarks.matrix.progress import Batch, batches, verdicts_of
from benchmarks.matrix.prompts import MIXED
from benchmarks.matrix.running import (
    GRAPH,
    GRAPH_V2,
    OURS,
    OURS_V2,
    STOCK,
    Verdict,
    replayed,
    scenario,
)
from benchmarks.matrix.worker import MARK
from benchmarks.matrix.workers import Workers
from tests.support.engine import Result
from tests.support.reference import DraftProposal
from tests.support.speculation import SpeculativeOutput
from tests.support.tiny_models.recipes import FOR_THE_MATRIX

OUTCOMES = {"works", "refused", "fails"}
IN_GRAPHS = {*OUTCOMES, "draft eager", "eager", None}


def test_cells_are_found_by_name_target_and_draft() -> None:
    assert [cell.name for cell in find_cells(["mla/dense"])] == ["mla/dense"]
    assert {cell.target for cell in find_cells(["window+full/"])} == {"window+full"}
    assert {cell.draft for cell in find_cells(["/eagle3", "dense/eagle3"])} == {"eagle3"}
    names = [cell.name for cell in find_cells([])]
    assert len(set(names)) == len(names)
    with pytest.raises(ValueError, match=r"no cell is called 'dense/moon'; there are: .*mla/mtp"):
        find_cells(["dense/moon"])


def test_a_family_is_run_with_the_drafts_that_it_names() -> None:
    drafts = {cell.draft for cell in find_cells(["glm4-moe/"])}
    assert drafts == {"dense", "short conv", "eagle3", "mtp", "ngram"}
    named = {name for target in families.TARGETS for name in target.drafts}
    assert named <= {draft.name for draft in cells.DRAFTS}
    everything = {cell.draft for cell in find_cells(["mla/"])}
    assert everything >= {draft.name for draft in cells.DRAFTS}


def test_models_for_the_matrix_alone_are_in_it_and_in_no_test() -> None:
    """They are not among the files of the repository."""
    assert {model for cell in find_cells([]) for model in cell.models} >= {*FOR_THE_MATRIX}
    root = Path(__file__).resolve().parents[2]
    texts = [path.read_text(encoding="utf-8") for path in (root / "emulated").rglob("*.py")]
    assert texts
    named = [name for name in FOR_THE_MATRIX if any(f'"{name}"' in text for text in texts)]
    assert named == []


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


def test_the_words_of_a_configuration_that_is_refused_are_below_its_error() -> None:
    log = "pydantic_core.ValidationError: 1 validation error for X\n  Value error, no [type=a]\n"
    assert refusals.last_words(f"INFO\n{log}    For further information see\n") == "Value error, no"


def test_a_verdict_is_found_until_a_source_changes(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    cell, other = find_cells(["dense/dense", "dense/mla"])
    verdict = Verdict("works", "", 1.25, 1.25, 3.0)
    store.keep(cell, OURS, verdict)
    assert store.find(cell, OURS) == verdict
    assert store.find(cell, STOCK) is None
    assert store.find(other, OURS) is None
    monkeypatch.setattr(store, "sources_digest", lambda side: "changed")
    assert store.find(cell, OURS) is None


def test_what_stock_runs_does_not_change_with_the_plugin() -> None:
    assert store.sources_digest(OURS) != store.sources_digest(STOCK)


def test_processes_have_one_environment_and_not_too_many_cells() -> None:
    chosen = find_cells([])
    made = batches([(cell, side) for side in (OURS, GRAPH, STOCK) for cell in chosen])
    assert all(len(batch.cells) <= progress.CELLS_OF_A_PROCESS for batch in made)
    assert all(cell.triton == batch.triton for batch in made for cell in batch.cells)
    assert sorted((batch.side, cell.name) for batch in made for cell in batch.cells) == sorted(
        (side, cell.name) for side in (OURS, GRAPH, STOCK) for cell in chosen
    )
    for batch in made:
        assert ("--strict" in batch.command()) == (batch.side != STOCK)
        plugins = batch.environment().get("VLLM_PLUGINS", "").split(",")
        # With its models, which vLLM has others in place of, and without ours.
        assert ({"ascend", "ascend_model"} <= {*plugins}) == (batch.side == STOCK)
        assert "mkv_ascend" not in plugins


def test_model_runner_v2_is_asked_for_and_has_triton_for_every_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "model_directory", Path)  # nothing is trained for names alone
    (cell,) = find_cells(["dense/dense"])
    assert not cell.triton
    for side in (OURS_V2, GRAPH_V2):
        (batch,) = batches([(cell, side)])
        assert "--triton" in batch.command()
        asked = scenario(cell, [[1, 2]], side)
        assert asked.environment["VLLM_USE_V2_MODEL_RUNNER"] == "1"
        assert (asked.graphs is not None) == (side == GRAPH_V2)
    assert "VLLM_USE_V2_MODEL_RUNNER" not in scenario(cell, [[1, 2]], OURS).environment


def test_model_runner_v2_has_a_column_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = find_cells(["dense/dense"])
    works = Verdict("works", "", 1.5, 1.5)
    monkeypatch.setattr(table, "version", lambda _: table.FIRST_HOST)
    before = table.as_json([cell], {(cell.name, side): works for side in (OURS, STOCK)})
    monkeypatch.setattr(table, "version", lambda _: "0.30.0rc2")
    (row,) = table.as_json([cell], {(cell.name, OURS): works}, before)["cells"]
    assert [*row["hosts"]] == ["0.30.0rc2"]
    of_v2 = {(cell.name, OURS_V2): works, (cell.name, GRAPH_V2): Verdict("fails", "eager")}
    (row,) = table.as_json([cell], of_v2, {**before, "cells": [row]})["cells"]
    assert row["hosts"]["0.30.0rc2"]["ours"] == "works"
    assert "graph" not in row["hosts"]["0.30.0rc2"]
    found = row["hosts"]["0.30.0rc2 V2"]
    assert (found["ours"], found["graph"], found["graph_reason"]) == ("works", "fails", "eager")


DYING = f"""
import json, os, sys
for name in sys.argv[1:]:
    print({MARK!r} + json.dumps({{"started": name}}), flush=True)
    if name == "dense/mla":
        os._exit(3)
    print("INFO noise", flush=True)
    print({MARK!r} + json.dumps({{"cell": name, "outcome": "works", "reason": ""}}), flush=True)
"""


def test_a_process_that_dies_takes_only_its_cell_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Batch,
        "command",
        lambda batch: [sys.executable, "-c", DYING, *(cell.name for cell in batch.cells)],
    )
    chosen = find_cells(["dense/dense", "dense/mla", "mla/dense"])
    found = verdicts_of(Batch(OURS, False, tuple(chosen)), Workers())
    assert [(cell.name, verdict.outcome) for cell, verdict in found] == [
        ("dense/dense", "works"),
        ("mla/dense", "works"),
    ]


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


@pytest.fixture
def _first_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever vllm-ascend runs the tests."""
    monkeypatch.setattr(table, "version", lambda _: table.FIRST_HOST)


@pytest.mark.usefixtures("_first_host")
def test_the_json_has_all_sides_of_a_cell() -> None:
    (cell,) = find_cells(["dense/dense"])
    verdicts = {
        (cell.name, OURS): Verdict("works", "", 1.5, 1.5),
        (cell.name, GRAPH): Verdict("draft eager", "it drafts all tokens in one pass", 1.5, 1.5),
        (cell.name, STOCK): Verdict("fails", "no /x/gemma3_draft-0123456789ab here"),
    }
    (row,) = table.as_json([cell], verdicts)["cells"]
    assert (row["ours"], row["stock"], row["acceptance"]) == ("works", "fails", 1.5)
    assert (row["reason"], row["stock_reason"]) == ("", "no gemma3_draft here")
    assert (row["graph"], row["graph_reason"]) == (
        "draft eager",
        "it drafts all tokens in one pass",
    )


@pytest.mark.usefixtures("_first_host")
def test_what_was_not_run_stays_as_it_was() -> None:
    chosen = find_cells(["dense/dense", "dense/mla"])
    first, second = chosen
    ran = {(first.name, side): Verdict("works", "", 1.5, 1.5) for side in (OURS, GRAPH, STOCK)}
    before = table.as_json([first], ran)
    assert len(before["cells"]) == 1
    again = table.as_json(chosen, {(first.name, OURS): Verdict("fails", "late")}, before)
    (row,) = again["cells"]
    assert (row["ours"], row["reason"], row["acceptance"]) == ("fails", "late", None)
    assert (row["graph"], row["stock"]) == ("works", "works")
    before["cells"][0]["draft_model"] = "another"
    assert table.as_json(chosen, {}, before)["cells"] == []
    never = {(second.name, side): Verdict("works", "", 1.0, 1.0) for side in (OURS, STOCK)}
    (row,) = table.as_json(chosen, never, before)["cells"]
    assert (row["draft"], row["graph"]) == ("mla", None)


def test_what_came_of_a_cell_on_another_host_stands_beside_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = find_cells(["dense/dense", "dense/mla"])
    (name, side), works = (chosen[0].name, OURS), Verdict("works", "", 1.5, 1.5)
    first = {(name, one): works for one in (OURS, GRAPH, STOCK)}
    monkeypatch.setattr(table, "version", lambda _: table.FIRST_HOST)
    before = table.as_json(chosen, first)
    monkeypatch.setattr(table, "version", lambda _: "0.30.0rc2")
    there = {(name, side): works, (name, GRAPH): Verdict("fails", "other tokens")}
    after = table.as_json(chosen, there, before)
    assert after["versions"] == before["versions"]
    (row,) = after["cells"]
    found = row.pop("hosts")["0.30.0rc2"]
    assert row == {field: kept for field, kept in before["cells"][0].items() if field != "hosts"}
    assert (found["ours"], found["graph"], found["graph_reason"]) == (
        "works",
        "fails",
        "other tokens",
    )
    row["hosts"] = {"0.30.0rc2": found}
    line = matrix_pages.details(after).splitlines()[-1]
    assert "| works, fails, not run | 0.30.0rc2 in graphs: other tokens |" in line
    monkeypatch.setattr(table, "version", lambda _: table.FIRST_HOST)
    (row,) = table.as_json(chosen, {(name, OURS): Verdict("fails", "late")}, after)["cells"]
    assert (row["ours"], row["hosts"]["0.30.0rc2"]["ours"]) == ("fails", "works")


def test_a_method_that_the_first_host_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row has what came of it on another host; a run on the first changes nothing of it."""
    chosen = find_cells(["gpt-oss/dspark", "dense/dense"])
    works = Verdict("works", "", 0.5, 0.5)
    monkeypatch.setattr(table, "version", lambda _: "0.30.0rc2")
    assert program.is_known_here(chosen[0])
    assert table.as_json(chosen, {(chosen[1].name, OURS): works})["cells"] == []
    there = {(chosen[0].name, OURS_V2): works, (chosen[0].name, GRAPH_V2): works}
    matrix = table.as_json(chosen, there)
    (row,) = matrix["cells"]
    assert (row["ours"], row["stock"], [*row["hosts"]]) == (None, None, ["0.30.0rc2 V2"])
    monkeypatch.setattr(table, "version", lambda _: table.FIRST_HOST)
    assert [program.is_known_here(cell) for cell in chosen] == [False, True]
    assert table.as_json(chosen, {}, matrix)["cells"] == [row]


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


def test_counted_replays_of_the_target_tell_as_the_log_does() -> None:
    (cell,) = find_cells(["dense/dense"])
    assert replayed(cell, Result(tokens=[], draft_replays=3, target_replays=2))[0] == "works"
    assert replayed(cell, Result(tokens=[], draft_replays=3))[0] == "fails"
