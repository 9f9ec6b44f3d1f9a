# SPDX-License-Identifier: Apache-2.0
"""What KV connectors are given of planned caches, and which connectors are refused."""

import functools
from types import SimpleNamespace

import pytest

# Before anything else of vllm-ascend: its modules import each other in a circle.
import vllm_ascend.ops  # noqa: F401  # isort: skip

from mkv_ascend.adapters.common.judge.facts_of_config import connector_names
from mkv_ascend.rules.kv_cache import OFFLOADING, SIMPLE_OFFLOAD
from tests.emulated import probes
from tests.support import programs
from tests.support.pairs import scenario

pytestmark = pytest.mark.host("0.23")

MEMORY = 48 << 20
RECORDING = {
    "kv_connector": "RecordingConnector",
    "kv_connector_module_path": "tests.emulated.kv_transfer.recording_connector",
    "kv_role": "kv_both",
}
PAIRS = [
    ("deepseek_v2_target", "llama_draft"),  # one group, stock serves it
    ("gemma3", "llama_draft"),  # several groups that share buffers
]


@functools.cache
def probe(target, draft):
    """What an engine with a recording connector registered; one engine for all tests of a pair."""
    case = scenario(target, draft, prompts=[])
    engine = {"kv_cache_memory_bytes": MEMORY, "kv_transfer_config": RECORDING}
    return programs.answer_of(probes.transfer, {**case.engine_arguments(), **engine})


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_every_buffer_is_an_aligned_allocation(target, draft):
    result = probe(target, draft)
    assert result["planned"]
    for name, cache in result["registered"].items():
        assert cache["misaligned"] == [0] * len(cache["tensors"]), name
        assert cache["storages"] == len(cache["tensors"]), name
        assert all(cache["contiguous"]), name


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_address_and_bytes_of_a_block_are_exactly_the_block(target, draft):
    assert probe(target, draft)["wrong_blocks"] == []


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_alignment_is_part_of_the_memory_that_was_given(target, draft):
    result = probe(target, draft)
    assert result["held_bytes"] <= MEMORY


def test_connectors_get_what_vllm_ascend_gives_them():
    """Containers, shapes, dtypes, strides, alignment, and a storage of their own and its size."""
    result = probe(*PAIRS[0])
    assert result["registered"] == result["stock"]


def asked(name=None, offloading_gib=None, **extra):
    transfer = SimpleNamespace(
        kv_connector=name, kv_connector_module_path=None, kv_connector_extra_config=extra
    )
    return SimpleNamespace(
        cache_config=SimpleNamespace(
            kv_offloading_size=offloading_gib, kv_offloading_backend="native"
        ),
        kv_transfer_config=transfer if name else None,
    )


INSIDE = [{"kv_connector": OFFLOADING}, {"kv_connector": "UCMConnector"}]


@pytest.mark.parametrize(
    ("config", "simple", "names"),
    [
        (asked(OFFLOADING), "0", {OFFLOADING}),
        (
            asked("MultiConnector", connectors=INSIDE),
            "0",
            {"MultiConnector", OFFLOADING, "UCMConnector"},
        ),
        (asked(offloading_gib=4), "0", {OFFLOADING}),
        (asked(offloading_gib=4), "1", {SIMPLE_OFFLOAD}),
        (asked(), "0", set()),
    ],
    ids=["by name", "inside another", "by size", "by size, simple", "none"],
)
def test_connectors_are_judged_wherever_they_are_named(config, simple, names, monkeypatch):
    monkeypatch.setenv("VLLM_USE_SIMPLE_KV_OFFLOAD", simple)
    assert connector_names(config) == names
