# SPDX-License-Identifier: Apache-2.0
"""Each rule refuses what it is for, and lets what is next to it pass."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mkv_ascend.rules import graphs
from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.kv_cache import Memory, weights_over_device
from mkv_ascend.rules.model import ConfigFileError, broken_weights, read_object
from mkv_ascend.rules.options import unknown_names
from mkv_ascend.rules.verdict import refusals
from tests.support.rule_cases import REFUSED, SERVED
from tests.support.rule_facts import LLAMA, MOE, NEW, OLD, facts, model, pair
from tests.support.safetensors_files import write_tensors


def codes(found: Facts) -> list[str]:
    return [refusal.code for refusal in refusals(found)]


@pytest.mark.parametrize("name", SERVED)
def test_what_is_served_is_not_refused(name: str) -> None:
    assert refusals(SERVED[name]) == ()


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_is_refused_once_and_in_three_parts(name: str) -> None:
    code, found = REFUSED[name]
    assert codes(found) == [code]
    (refusal,) = refusals(found)
    assert all((refusal.asked, refusal.possible, refusal.change))
    assert not any(part.endswith(".") for part in (refusal.asked, refusal.possible, refusal.change))


def test_several_are_told_at_once() -> None:
    found = pair(tokens=16, cache_dtype="fp8", devices_needed=16)
    assert codes(found) == ["kv-cache-dtype", "devices", "tokens-per-step"]


def test_our_options_one_level_too_high_are_refused_on_each_host() -> None:
    for host in (OLD, NEW):
        (found,) = unknown_names({"attention": {"target": "mla"}}, host)
        assert found.code == "additional-config"
        assert found.change == 'write {"mkv_ascend": {"attention": ...}}'
        assert not list(unknown_names({"mkv_ascend": {}, "enable_flashcomm1": True}, host))
    (found,) = unknown_names({"enable_flashcom": True}, NEW)
    assert "enable_flashcom, which" in found.asked
    assert not list(unknown_names({"enable_flashcom": True}, OLD))


@pytest.mark.parametrize(
    ("found", "backends", "says"),
    [
        (pair(graph_mode="FULL_DECODE_ONLY"), {"fused_infer_attention": 4}, "captured"),
        (pair(), {}, "the target has no full graphs"),
        (pair(graph_mode="FULL", options={"enforce_eager": True}), {}, "enforce_eager"),
        (pair(graph_mode="FULL", tokens=15), {"mla": 1}, "a prefill to MLA"),
        (pair(graph_mode="FULL"), {"flash_attention_3": 1}, "launches of flash_attention_3"),
        (
            pair(MOE, target=MOE, graph_mode="FULL", data_parallel=2),
            {"mla": 1},
            "one with those of other ranks",
        ),
    ],
)
def test_how_a_draft_runs_is_told(found: Facts, backends: dict[str, int], says: str) -> None:
    assert says in (graphs.draft_graphs(found, backends) or "")
    assert graphs.draft_graphs(facts(), {}) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00{", "is not UTF-8"),
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"null", "is not a JSON object"),
        (b"[" * 100_000, "is nested too deeply"),
        (b'{"num_hidden_layers": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b'{"a": ' + b" " * 200_000 + b"1}", "has 200008 bytes, which no config.json has"),
    ],
    ids=["bytes", "empty", "cut off", "list", "null", "deep", "digits", "large"],
)
def test_files_that_hold_no_object(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigFileError, match=said):
        read_object(path, 200_000)


def test_no_file_a_folder_in_its_place_and_a_name_of_no_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    for name in ("nowhere", "config.json", "x" * 5000):
        assert read_object(tmp_path / name, 1) is None


def test_an_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": [1, null]}', encoding="utf-8")
    assert read_object(tmp_path / "config.json", 100) == {"a": [1, None]}


def test_files_of_weights_that_no_loader_reads_are_named(tmp_path: Path) -> None:
    """Of a folder with an index those that it names; whole ones and other folders are silent."""
    assert list(broken_weights(tmp_path)) == list(broken_weights(tmp_path / "nowhere")) == []
    whole = write_tensors(tmp_path / "whole.safetensors", {"a": (4, 4)}).read_bytes()
    assert list(broken_weights(tmp_path)) == []
    for name, content in {"short": whole[:-8], "text": b"a page of errors", "none": b""}.items():
        (tmp_path / f"{name}.safetensors").write_bytes(content)
    found = list(broken_weights(tmp_path))
    assert [line.split()[0] for line in found] == [
        str(tmp_path / f"{name}.safetensors") for name in ("none", "short", "text")
    ]
    index = {"weight_map": {"a": "whole.safetensors", "b": "absent\x1b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (absent,) = broken_weights(tmp_path)
    assert absent.startswith("there is no file ")
    assert "\x1b" not in absent
    (tmp_path / "consolidated.safetensors").touch()
    assert list(broken_weights(tmp_path)) == []


def test_broken_weights_are_refused_where_they_would_be_read(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"short")
    broken = facts(target=replace(model(LLAMA), name=str(tmp_path)))
    (refusal,) = refusals(broken)
    assert refusal.code == "weights"
    assert refusals(replace(broken, load_format="dummy")) == ()


GIB = 1 << 30


def memory(target: int, draft: int = 0, given: int = 0, ranks: int = 1) -> Memory:
    return Memory(64 * GIB, 0.9, given, 0, target * GIB, draft * GIB, GIB, ranks)


def test_caches_have_what_weights_leave_and_are_told_after_activations() -> None:
    found = memory(20, 4)
    assert found.most == int(64 * GIB * 0.9) - 24 * GIB
    assert found.expected == found.most - GIB
    assert (
        found.basis == "57.6 GiB of a device less 24.0 GiB of weights and about 1.0 GiB of "
        "activations"
    )
    assert memory(20, given=8 * GIB).expected == 8 * GIB


def test_weights_over_a_device_are_refused_with_the_ranks_that_hold_them() -> None:
    assert not list(weights_over_device(memory(57)))
    (found,) = weights_over_device(memory(1250))
    assert found.code == "memory"
    assert "take 1250.0 GiB on each of 1 ranks" in found.asked
    assert "about 32 ranks" in found.possible
    (found,) = weights_over_device(memory(50, 10, ranks=2))
    assert "(target 50.0 GiB, draft 10.0 GiB)" in found.asked
    # With memory for caches given, weights may take all that is left.
    assert not list(weights_over_device(memory(60, given=GIB)))
