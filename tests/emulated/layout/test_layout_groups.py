# SPDX-License-Identifier: Apache-2.0
"""vLLM's own path from specs to KV cache configurations, with our functions in it; no engine."""

import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # First of vllm_ascend, or its imports go in a circle.
import vllm_ascend.patch.platform  # noqa: F401  Before specs are registered, as in an engine.
from vllm.v1.core import kv_cache_utils
from vllm.v1.engine import core as engine_core
from vllm.v1.kv_cache_interface import (
    HiddenStateCacheSpec,
    MambaSpec,
    SinkFullAttentionSpec,
)
from vllm_ascend.core.kv_cache_interface import AscendSlidingWindowMLASpec

from mkv_ascend.layout.component import ONE_BLOCK
from mkv_ascend.layout.grouping import AdmissionError, GroupingError
from mkv_ascend.rules.kv_cache import ConnectorError
from tests.support import hosts
from tests.support.caches.kv_configs import (
    MIB,
    config,
    configs,
    full,
    layers,
    layers_of,
    mla,
    model,
    window,
)

layer_facts = hosts.module("kv_cache.layer_facts")
kv_groups = hosts.module("kv_cache.kv_groups")
page_shapes = hosts.module("kv_cache.page_shapes")
planned_groups = hosts.module("kv_cache.planned_groups")
if hosts.NAME == "vllm_ascend_0_30":
    left_alone = hosts.module("kv_cache.left_alone")

pytestmark = [pytest.mark.usefixtures("installed"), pytest.mark.core]

A_BLOCK_A_PAGE = {"shared_pages": False}

only_planned_with_transfer = hosts.only_on(
    "vllm_ascend_0_23", "connectors of 0.30.0rc2 read vllm-ascend's descriptors of the caches"
)


def test_pair_that_vllm_refuses_has_two_groups():
    specs = model([mla(), mla()], [window(4), window(4), full(4)])
    original = kv_cache_utils.get_kv_cache_groups.__wrapped__
    if hosts.NAME == "vllm_ascend_0_23":
        with pytest.raises((NotImplementedError, AssertionError)):
            original(config(), dict(specs))
    else:  # vLLM 0.30.0 splits all groups to single layers.
        assert len(original(config(), dict(specs))) == len(specs)
    (result,) = configs(specs, layout=A_BLOCK_A_PAGE)
    assert layers(result) == [
        ["model.layers.0", "model.layers.1", "head.layers.2"],
        ["head.layers.0", "head.layers.1"],
    ]
    latent, dense = 128 * 576 * 2, 128 * 4 * 64 * 2 * 2
    # Keys and values of the window share the planes of the draft's full layer: one of two.
    assert sum(tensor.size for tensor in result.kv_cache_tensors) == result.num_blocks * (
        2 * latent + 2 * dense
    )
    shared = [layers_of(tensor) for tensor in result.kv_cache_tensors]
    assert sorted(name for names in shared for name in names) == sorted(specs)


@hosts.only_on("vllm_ascend_0_23", "vLLM 0.30.0 compares the size of values, too")
def test_values_of_two_sizes_and_hidden_states_beside_layers_are_two_specs():
    """vLLM 0.23.0 would give all layers the first one's values, and its look fails on the other."""
    stock = kv_cache_utils.is_kv_cache_spec_uniform.__wrapped__
    narrow = {"a": full(), "b": replace(full(), head_size_v=32)}
    assert stock(dict(narrow)), "vLLM compares them now"
    assert not kv_cache_utils.is_kv_cache_spec_uniform(narrow)
    states = HiddenStateCacheSpec(
        block_size=128, num_kv_heads=1, head_size=576, dtype=torch.bfloat16
    )
    beside = {"a": mla(), "b": states}
    with pytest.raises(AttributeError):
        stock(dict(beside))
    assert not kv_cache_utils.is_kv_cache_spec_uniform(beside)
    assert kv_cache_utils.is_kv_cache_spec_uniform({"a": full(), "b": full()})


def test_specs_keep_their_facts_on_the_way_to_another_process():
    specs = model([mla()], [window()])
    for name, spec in pickle.loads(pickle.dumps(specs)).items():
        assert layer_facts.tied_facts(spec) == layer_facts.tied_facts(specs[name])
        assert spec == specs[name]
    assert layer_facts.tied_facts(replace(specs["head.layers.0"], sliding_window=8)) is None


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ([full(), window()], []),
        ([full(), full()], [full()]),
        ([mla(), mla()], [full(4)]),
    ],
    ids=["no draft", "one spec", "one group"],
)
def test_groups_are_vllms_own_without_a_draft_or_with_one_group(target, draft):
    specs = model(target, draft)
    original = kv_cache_utils.get_kv_cache_groups.__wrapped__
    ours = kv_cache_utils.get_kv_cache_groups(config(), dict(specs))
    assert planned_groups.are_planned(ours)
    assert planned_groups.as_vllm_has_them(ours) == original(config(), dict(specs))


ALONE = {"without_draft": True}


def groups_alone(target, **options):
    return kv_cache_utils.get_kv_cache_groups(config(layout=ALONE, **options), model(target, []))


def test_a_target_alone_gets_our_groups_where_they_cost_less():
    """One layer of all tokens beside seven of a window: vLLM makes groups of single layers."""
    target = [full(), *(window(4) for _ in range(7))]
    assert len(kv_cache_utils.get_kv_cache_groups(config(), model(target, []))) > 2
    ours = groups_alone(target)
    assert [len(group.layer_names) for group in ours] == [1, 7]
    assert planned_groups.are_planned(ours)


@pytest.mark.parametrize("why", ["alike", "cannot be planned", "KV transfer"])
def test_a_target_alone_keeps_vllms_groups(why, monkeypatch):
    """Where ours hold no less, and where there are none."""
    target = [full(), window(4)] if why == "alike" else [full(), *(window(4) for _ in range(7))]
    options = {}
    if why == "cannot be planned":
        monkeypatch.setattr(kv_groups, "plan", lambda _: cannot_be_planned())
    if why == "KV transfer":
        options = {"kv_transfer": connector("AscendStoreConnector")}
        asked = config(layout=ALONE, **options)
        assert not planned_groups.may_be_ours(asked, model(target, []))
    original = kv_cache_utils.get_kv_cache_groups.__wrapped__
    stock = original(config(**options), model(target, []))
    found = groups_alone(target, **options)
    seen = planned_groups.as_vllm_has_them(found) if planned_groups.are_planned(found) else found
    assert seen == stock


def cannot_be_planned():
    raise GroupingError("no block size is allowed")


def connector(name):
    return SimpleNamespace(
        is_kv_consumer=False,
        kv_connector=name,
        kv_connector_module_path=None,
        kv_connector_extra_config={},
    )


@only_planned_with_transfer
def test_groups_with_kv_transfer_are_those_of_pages_of_one_block():
    specs = model([full(), window()], [full(4)])
    transfer = config(kv_transfer=connector("AscendStoreConnector"))
    groups = kv_cache_utils.get_kv_cache_groups(transfer, dict(specs))
    assert planned_groups.are_planned(groups)
    without = config(layout=A_BLOCK_A_PAGE)
    assert groups == kv_cache_utils.get_kv_cache_groups(without, dict(specs))
    assert {kv_groups.shape_of_group(group) for group in groups} == {ONE_BLOCK}


@only_planned_with_transfer
def test_mooncake_is_refused_where_it_would_register_keys_without_values():
    transfer = config(kv_transfer=connector("MooncakeConnectorV1"))
    several = model([full(), window()], [full(4)])
    with pytest.raises(ConnectorError, match=r"need 2 KV groups: .*disable_hybrid_kv_cache"):
        kv_cache_utils.get_kv_cache_groups(transfer, several)
    one = model([full()], [full(4)])
    assert len(kv_cache_utils.get_kv_cache_groups(transfer, one)) == 1


@only_planned_with_transfer
def test_offload_is_refused_where_it_would_lose_states_or_fail_later():
    transfer = config(kv_transfer=connector("SimpleCPUOffloadConnector"))
    state = MambaSpec(block_size=128, shapes=((128, 256),), dtypes=(torch.bfloat16,))
    for target, draft, said in (
        ([full(), state], [], "layers with states: it keeps one tensor"),
        ([mla()], [full(4)], "none of the 1 groups is"),
    ):
        with pytest.raises(ConnectorError, match=said):
            kv_cache_utils.get_kv_cache_groups(transfer, model(target, draft))
    assert len(kv_cache_utils.get_kv_cache_groups(transfer, model([full()], [full()]))) == 1


@hosts.only_on("vllm_ascend_0_30", "the coordinator of several groups is another one there")
def test_offload_is_refused_with_several_groups():
    transfer = config(kv_transfer=connector("SimpleCPUOffloadConnector"))
    state = MambaSpec(block_size=128, shapes=((128, 256),), dtypes=(torch.bfloat16,))
    for target, draft in (([full(), state], []), ([full(), window()], [full(4)])):
        with pytest.raises(ConnectorError, match=r"need \d KV groups: it asks for the block"):
            kv_cache_utils.get_kv_cache_groups(transfer, model(target, draft))
    assert len(kv_cache_utils.get_kv_cache_groups(transfer, model([full()], [full()]))) == 1


@hosts.only_on("vllm_ascend_0_30", "0.23.0 plans DeepSeek-V4's caches, whatever is beside them")
def test_a_draft_beside_deepseek_v4_is_refused_where_caches_are_left_to_vllm_ascend():
    latent = AscendSlidingWindowMLASpec(
        block_size=128,
        num_kv_heads=1,
        head_size=512,
        dtype=torch.bfloat16,
        sliding_window=128,
        model_version="deepseek_v4",
    )
    transfer = config(kv_transfer=connector("AscendStoreConnector"), method="draft_model")
    with pytest.raises(NotImplementedError, match=r"KV transfer is on, .* no layers of another"):
        kv_cache_utils.get_kv_cache_groups(transfer, model([latent], [full(4)]))
    drafted = config(method="draft_model")
    groups = kv_cache_utils.get_kv_cache_groups(drafted, model([latent], [full(4)]))
    assert planned_groups.are_planned(groups)
    # A stage of a pipeline without the draft.
    assert left_alone.why_not_planned(drafted, [latent]) is None
    assert left_alone.why_not_planned(config(method="mtp"), [latent]) is not None


@only_planned_with_transfer
def test_states_are_planned_with_connectors_that_read_each_tensor():
    state = MambaSpec(block_size=128, shapes=((128, 256),), dtypes=(torch.bfloat16,))
    for name, planned in (
        ("RecomputeCPUOffloadConnector", True),
        ("MooncakeHybridConnector", False),
        ("of the user", False),
    ):
        transfer = connector(name)
        if name == "of the user":
            transfer.kv_connector_module_path = "a.module"
        specs = model([full(), state])
        groups = kv_cache_utils.get_kv_cache_groups(config(kv_transfer=transfer), specs)
        assert planned_groups.are_planned(groups) is planned


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "draft_model"])
def test_only_groups_of_drafts_that_shift_their_input_give_up_a_block(method):
    specs = model([full(), window(), window()], [full(4)])
    (result,) = configs(specs, method=method)
    flagged = [group.is_eagle_group for group in result.kv_cache_groups]
    drafted = [any(name.startswith("head.") for name in names) for names in layers(result)]
    assert sum(drafted) == 1
    assert flagged == (drafted if method != "draft_model" else [False] * len(drafted))


@pytest.mark.parametrize("method", ["dflash", "draft_model"])
def test_a_draft_may_be_split_over_groups(method):
    """Two dense and two window layers, two dense of the draft: the four are split."""
    specs = model([full(), window(), full(), window()], [full(), full()])
    (result,) = configs(specs, method=method, layout=A_BLOCK_A_PAGE)
    drafted = [n for n in layers(result) if any(name.startswith("head.") for name in n)]
    assert len(drafted) == 2
    assert not any(names[0].startswith("head.") for names in drafted)


# 8 blocks of the MLA layer; of the window 255 + 512 tokens in 6 blocks and 1 more; 1 for vLLM.
ONE_REQUEST = 8 + 7 + 1


def test_memory_of_one_request_and_vllms_block_is_needed():
    specs = model([mla()], [window()])
    (enough,) = configs(specs, blocks=ONE_REQUEST, layout=A_BLOCK_A_PAGE)
    assert enough.num_blocks == ONE_REQUEST
    with pytest.raises(AdmissionError) as error:
        configs(specs, blocks=ONE_REQUEST - 1, layout=A_BLOCK_A_PAGE)
    assert f"needs {ONE_REQUEST} blocks" in str(error.value)
    assert "lower max_model_len to 896 or less" in str(error.value)
    assert "raise num_gpu_blocks_override to 16" in str(error.value)
    less = {"blocks": ONE_REQUEST - 1, "max_model_len": 896}
    (shorter,) = configs(specs, layout=A_BLOCK_A_PAGE, **less)
    assert shorter.num_blocks == ONE_REQUEST - 1


@only_planned_with_transfer
@pytest.mark.parametrize("draft", [[window(4)], []], ids=["two groups", "one group"])
def test_alignment_for_kv_transfer_is_counted(draft):
    """2 MiB for each buffer: the latent, the rope, and for a draft keys and values."""
    specs = model([mla()], draft)
    transfer = connector("AscendStoreConnector")
    (without,) = configs(specs, layout=A_BLOCK_A_PAGE)
    block = sum(tensor.size for tensor in without.kv_cache_tensors) // without.num_blocks
    one_request = ONE_REQUEST if draft else 8 + 1
    needed = one_request * block + 2 * MIB * (2 + 2 * len(draft))
    (enough,) = configs(specs, memory=needed, kv_transfer=transfer)
    assert enough.num_blocks == one_request
    with pytest.raises(AdmissionError, match="MiB that align caches for transfer"):
        configs(specs, memory=needed - 1, kv_transfer=transfer)
    (asked,) = configs(specs, blocks=one_request, kv_transfer=transfer)
    assert asked.num_blocks == one_request


def test_one_group_needs_vllms_block_too():
    specs = model([full(), full()])
    assert configs(specs, blocks=9)[0].num_blocks == 9
    with pytest.raises(AdmissionError, match="needs 9 blocks"):
        configs(specs, blocks=8)


def test_concurrency_is_that_of_all_groups():
    specs = model([mla()], [window()])
    (result,) = configs(specs, blocks=150, layout=A_BLOCK_A_PAGE)
    found = kv_cache_utils.get_max_concurrency_for_kv_cache_config(config(), result)
    assert found == pytest.approx(150 / (ONE_REQUEST - 1))


def test_pages_that_groups_share_are_counted():
    """A request alone needs whole pages of each group; many fill each other's."""
    specs = model([full(8)], [window(1)])
    # A page holds a block of the target, or eight of the draft.
    alone, of_many = 8 + 1, 8 + 7 / 8
    (result,) = configs(specs, blocks=alone + 1)
    found = kv_cache_utils.get_max_concurrency_for_kv_cache_config(config(), result)
    assert found == pytest.approx((alone + 1) / of_many)
    with pytest.raises(AdmissionError, match=f"needs {alone + 1} pages"):
        configs(specs, blocks=alone)


@hosts.only_on("vllm_ascend_0_23", "0.30.0rc2's own arrangement keeps layers with such sinks")
def test_beside_layers_with_sinks_of_their_own_a_page_is_a_block():
    """Their manager takes blocks out of vLLM's own pool."""
    sink = SinkFullAttentionSpec(
        block_size=128, num_kv_heads=8, head_size=64, dtype=torch.bfloat16, sink_len=128
    )
    for target, is_shared in (([sink], False), ([full(8)], True)):
        (result,) = configs(model(target, [window(1)]))
        shapes = page_shapes.page_shapes_of(result)
        assert (max(shape.blocks for shape in shapes) > 1) is is_shared


def test_a_worker_without_layers_of_a_group_is_planned_for_its_own():
    """Pipeline stages: the draft and its window are on the last.

    The scheduler, which is told the first one's groups, knows how blocks of all lie in pages.
    """
    specs = model([mla(), mla()], [window()])
    stages = [{"model.layers.0": specs["model.layers.0"]}, dict(specs)]
    del stages[1]["model.layers.0"]
    first, last = engine_core.get_kv_cache_configs(config(), stages, [64 * MIB] * 2)
    assert [name for names in layers(first) for name in names] == ["model.layers.0"]
    assert [layers_of(tensor) for tensor in first.kv_cache_tensors] == [["model.layers.0"]]
    assert first.num_blocks == last.num_blocks
    shapes = page_shapes.page_shapes_of(last)
    assert shapes[1].blocks > 1
    assert page_shapes.page_shapes_of(first) == shapes
    scheduled = kv_cache_utils.generate_scheduler_kv_cache_config([first, last])
    assert page_shapes.page_shapes_of(scheduled) == shapes
    # Blocks are named by their group in the engine, also on a stage that has no layer of one.
    planes = [("of", "a", "group")]
    own = page_shapes.planes_of_groups(first, [{"model.layers.0": None}, {}], planes)
    assert list(own) == [planes[0], ()]
