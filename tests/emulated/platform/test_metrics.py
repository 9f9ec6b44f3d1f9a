# SPDX-License-Identifier: Apache-2.0
"""`/metrics` of `vllm serve`: our figures beside vLLM's, the log and what explain prints."""

import json
import os
import re
from dataclasses import dataclass
from urllib.request import ProxyHandler, build_opener

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mkv_ascend import metrics
from tests.support import engine, programs
from tests.support.hosts import ADAPTER
from tests.support.server import complete, serve
from tests.support.stock import RUNNER_V2
from tests.support.tiny_models import model_directory

pytestmark = pytest.mark.slow
K, LENGTH, MAX_TOKENS = 3, 512, 24
TEXTS = ("import os", "def f(", "class A")
VLLM = "vllm:spec_decode_num_"
RUNNERS = {"v1": {}, "v2": RUNNER_V2}


@dataclass(frozen=True)
class Observed:
    """What a server has told.

    ``page``: samples as (name, labels, value). ``replays``: each worker's answer on its graphs.
    """

    page: list
    replays: list
    log: str
    report: dict

    def all_of(self, name, *labels):
        """Values by those labels."""
        return {
            tuple(given[label] for label in labels): value
            for found, given, value in self.page
            if found == name
        }

    def one(self, name):
        """The sum over all labels."""
        values = [value for found, _, value in self.page if found == name]
        assert values, name
        return sum(values)


def speculation():
    return {
        "method": "draft_model",
        "model": str(model_directory("gemma3_draft")),
        "num_speculative_tokens": K,
    }


def observe(folder, runner, *options, speculative=True):
    """Serve three texts one after another, in vLLM's default mode."""
    target, report = str(model_directory("gemma3")), folder / "start_up.json"
    arguments = [target, "--dtype", engine.compared_dtype(), "--max-model-len", str(LENGTH)]
    arguments += ["--max-num-seqs", "4", "--gpu-memory-utilization", "0.4", *options]
    ours = {"mkv_ascend": {"start_up_report": str(report)}}
    arguments += ["--additional-config", json.dumps(ours)]
    if speculative:
        arguments += ["--speculative-config", json.dumps(speculation())]
    environment = {**os.environ, **RUNNERS[runner]}
    with serve(arguments, folder / "server.log", environment) as server:
        for text in TEXTS:
            complete(server, target, text, MAX_TOKENS)
        replays = server.call_workers("draft_replays")
        with build_opener(ProxyHandler({})).open(f"{server.address}/metrics") as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    page = [(s.name, s.labels, s.value) for family in families for s in family.samples]
    log = (folder / "server.log").read_text()
    return Observed(page, replays, log, json.loads(report.read_text()))


def check_proposals(seen):
    """Requests came one by one: their prompts draft eagerly, each verification by a replay.

    Where steps are scheduled ahead, a request may end before its last proposal is verified.
    """
    proposals = seen.all_of(metrics.PROPOSALS.name, "mode", "reason")
    verified, replayed = seen.one(f"{VLLM}drafts_total"), seen.replays[0]["replays"]
    assert 10 < verified <= replayed <= verified + len(TEXTS)
    assert proposals == {("eager", "mixed_batch"): len(TEXTS), ("replayed", ""): replayed}
    assert [answer["replays"] for answer in seen.replays] == [replayed] * len(seen.replays)
    every = sum(proposals.values())
    assert seen.all_of(metrics.DRAFT_TOKENS.name, "k") == {(str(K),): every * K}
    passes = seen.all_of(metrics.PASSES.name, "purpose")
    assert passes == {("proposal",): every * K, ("prefix_hit",): 0}
    assert seen.one(metrics.HOST_READS.name) == every
    builds = int(re.search(r"builds attention metadata (\d+) times", seen.log)[1])
    assert seen.one(metrics.METADATA_BUILDS.name) == builds * len(TEXTS)


def check_acceptance(seen):
    """By K as vLLM has it by position; every proposal here has the same K."""
    accepted = seen.all_of(metrics.ACCEPTED.name, "position", "k")
    theirs = seen.all_of(f"{VLLM}accepted_tokens_per_pos_total", "position")
    assert {position: value for (position, _), value in accepted.items()} == {
        position: value for (position,), value in theirs.items()
    }
    assert {k for _, k in accepted} == {str(K)}
    assert sum(accepted.values()) == seen.one(f"{VLLM}accepted_tokens_total") > 10
    verified = {(str(K),): seen.one(f"{VLLM}drafts_total")}
    assert seen.all_of(metrics.VERIFIED.name, "k") == verified


def explained(ranks, speculative):
    """The groups that ``mkv-ascend explain`` plans of models that are not loaded."""
    command = ["explain", "--format", "json", str(model_directory("gemma3"))]
    command += ["--max-model-len", str(LENGTH), "--tensor-parallel-size", str(ranks)]
    if speculative:
        command += ["--speculative-config", json.dumps(speculation())]
    done = programs.run_program("mkv_ascend.cli", command)
    assert done.status == 0, done.errors
    return json.loads(done.output)


def check_caches(seen, plan):
    """Bytes of each group and role, as planned without an engine; blocks as the log has them."""
    # Explain plans in the dtype of the checkpoints, bfloat16.
    times = 2 if engine.compared_dtype() == "float32" else 1
    used, idle = {}, {}
    for number, group in enumerate(plan["groups"]):
        idle[(str(number),)] = times * group["idle_bytes"]
        for layer in group["layers"]:
            key = (str(number), layer["role"])
            own = times * (layer["page_bytes"] - layer["padding_bytes"])
            used[key] = used.get(key, 0) + own
    assert seen.all_of(metrics.KV_BLOCK_BYTES.name, "kv_group", "role") == used
    assert seen.all_of(metrics.KV_BLOCK_IDLE_BYTES.name, "kv_group") == idle
    blocks = int(re.search(r"KV cache plan: \d+ groups?, (\d+) blocks", seen.log)[1])
    assert seen.one(metrics.KV_BLOCKS.name) == blocks == seen.report["kv_cache"]["num_blocks"]
    least = times * blocks * plan["bytes_per_block"]
    assert least <= seen.one(metrics.KV_CACHE_BYTES.name) < 1.01 * least


@pytest.mark.host("0.23", cases=["v1-1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-2", "v2-1"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("runner", ADAPTER.RUNNERS)
def test_figures_are_vllms_and_those_of_the_plan(ranks, runner, tmp_path):
    """With two ranks, of which each drafts, nothing is counted twice."""
    seen = observe(tmp_path, runner, "--tensor-parallel-size", str(ranks))
    assert len(seen.replays) == ranks
    check_proposals(seen)
    check_acceptance(seen)
    check_caches(seen, explained(ranks, speculative=True))
    labels = {(given["model_name"], given["engine"]) for n, given, _ in seen.page if "mkv_" in n}
    assert labels == {(str(model_directory("gemma3")), "0")}
    graphs = seen.all_of(metrics.GRAPHS.name, "role")[("draft",)]
    assert graphs == len(seen.replays[0]["captured"]) > 1
    assert seen.report["graphs"]["draft"]["graphs"] == graphs
    assert seen.report["draft"]["replayed_from_graphs"]
    assert [row["role"] for row in seen.report["layers"]].count("draft") == 2
    assert seen.log.count("Attention backends of the draft:") == 1


@pytest.mark.nightly("figures of a draft stay")
def test_without_a_draft_there_are_caches_and_no_proposals(tmp_path):
    seen = observe(tmp_path, "v1", "--enforce-eager", speculative=False)
    ours = {name for name, _, _ in seen.page if name.startswith("mkv_ascend")}
    assert ours == {
        metrics.KV_BLOCKS.name,
        metrics.KV_CACHE_BYTES.name,
        metrics.KV_BLOCK_BYTES.name,
        metrics.KV_BLOCK_IDLE_BYTES.name,
    }
    check_caches(seen, explained(1, speculative=False))
    assert seen.report["draft"] is None
