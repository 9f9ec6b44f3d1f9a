# SPDX-License-Identifier: Apache-2.0
"""The choice of a backend: who decides, and what is refused with which words."""

import dataclasses
import sys
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.attention import catalog
from mkv_ascend.attention.compatibility import reasons_against
from mkv_ascend.attention.entry import (
    BackendEntry,
    DeviceGeneration,
    Environment,
    GraphSupport,
    LayerRequest,
    module_is_installed,
)
from mkv_ascend.attention.selection import (
    Choice,
    ChosenBy,
    SelectionError,
    SelectionOptions,
    fitting_backends,
    require_all_matched,
    select_backend,
    unmatched_patterns,
    unused_options,
)
from mkv_ascend.config import parse_config
from mkv_ascend.layout.kind import Kind, Role

BARE = Environment(DeviceGeneration.A2, module_available=lambda name: False)
EVERYTHING = Environment(DeviceGeneration.A2, module_available=lambda name: True)
GATED_DELTA_NET = "vllm_ascend.ops.gdn_attn_builder:AscendGDNAttentionBackend"


def options(attention: dict[str, Any] | None = None, **vllm: Any) -> SelectionOptions:
    parsed = parse_config({"mkv_ascend": {"attention": attention or {}}})
    return SelectionOptions(parsed.attention, **vllm)


def layer(index: int = 0, **changes: Any) -> LayerRequest:
    request = LayerRequest(
        name=f"model.layers.{index}.self_attn.attn",
        role=Role.TARGET,
        kind=Kind.FULL_ATTENTION,
        layer_class="Attention",
        dtype="bfloat16",
        head_size=128,
        num_heads=8,
        num_kv_heads=2,
        block_size=128,
    )
    return dataclasses.replace(request, **changes)


def mla_layer(index: int = 0, **changes: Any) -> LayerRequest:
    return layer(
        index,
        **{"kind": Kind.MLA, "layer_class": "MLAAttention", "head_size": 576, "num_kv_heads": 1}
        | changes,
    )


def refusal(
    request: LayerRequest,
    selection_options: SelectionOptions | None = None,
    environment: Environment = EVERYTHING,
) -> str:
    with pytest.raises(SelectionError) as caught:
        select_backend(request, selection_options or options(), environment)
    return str(caught.value)


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (layer(), "fused_infer_attention"),
        (layer(arguments=frozenset({"sinks"})), "fused_infer_attention"),
        (layer(non_causal=True), "fused_infer_attention"),
        (layer(kind=Kind.SLIDING_WINDOW), "fused_infer_attention"),
        (layer(kind=Kind.CROSS_ATTENTION), "fused_infer_attention"),
        (mla_layer(), "mla"),
        (mla_layer(kind=Kind.SPARSE_MLA), "sparse_mla"),
        (mla_layer(kind=Kind.COMPRESSED_MLA), "compressed_mla"),
    ],
)
def test_the_default_is_the_best_backend_of_the_kind(request_: LayerRequest, name: str) -> None:
    choice = select_backend(request_, options(), EVERYTHING)
    assert (choice.backend.name, choice.chosen_by) == (name, ChosenBy.DEFAULT)
    assert choice.request is request_


def test_the_default_of_a_layer_is_not_asked_of_the_other_role() -> None:
    """An MLA target beside a dense draft: each by its own kind (code_map: one flag for both)."""
    requests = (mla_layer(), layer(1, role=Role.DRAFT))
    chosen = [select_backend(request, options(), BARE).backend.name for request in requests]
    assert chosen == ["mla", "fused_infer_attention"]


def test_the_default_depends_on_the_device() -> None:
    environment = Environment(DeviceGeneration.ATLAS_310P, module_available=lambda name: False)
    choice = select_backend(layer(dtype="float16"), options(), environment)
    assert choice.backend.name == "fused_infer_attention_310p"
    message = refusal(mla_layer(), environment=environment)
    assert "mla: it runs on A2, A3, A5, not on 310P" in message


def test_who_decides() -> None:
    """Each more particular way of asking wins over the one before."""
    attention: dict[str, Any] = {}
    vllm: dict[str, Any] = {}

    def chosen() -> tuple[str, ChosenBy]:
        choice = select_backend(layer(3), options(attention, **vllm), EVERYTHING)
        return choice.backend.name, choice.chosen_by

    assert chosen() == ("fused_infer_attention", ChosenBy.DEFAULT)
    vllm["vllm_target"] = "FLASH_ATTN"
    assert chosen() == ("flash_attention_3", ChosenBy.VLLM_OPTION)
    vllm["vllm_by_kind"] = (("full_attention", "FLASH_ATTN"), ("mla_attention", "NONE_SUCH"))
    vllm["vllm_target"] = "NONE_SUCH"
    assert chosen() == ("flash_attention_3", ChosenBy.VLLM_OPTION)
    del vllm["vllm_by_kind"], vllm["vllm_target"]
    attention["target"] = "fused_infer_attention"
    assert chosen() == ("fused_infer_attention", ChosenBy.OPTION)
    attention["target"] = {"full_attention": "FA3"}
    assert chosen() == ("flash_attention_3", ChosenBy.OPTION)
    attention["layers"] = {r"model\.layers\.3\..*": "FIA"}
    assert chosen() == ("fused_infer_attention", ChosenBy.PATTERN)
    attention["layers"]["model.layers.3.self_attn.attn"] = "FA3"
    assert chosen() == ("flash_attention_3", ChosenBy.PATTERN)


@pytest.mark.parametrize(
    ("attention", "vllm", "spelled"),
    [
        ({"target": "FIA"}, {"vllm_target": "FLASH_ATTN"}, "--attention-backend FLASH_ATTN"),
        (
            {"target": "FIA"},
            {"vllm_by_kind": (("full_attention", "FLASH_ATTN"),)},
            "--attention-config backend_per_kind.full_attention FLASH_ATTN",
        ),
        (
            {"target": {"full_attention": "FIA"}},
            {"vllm_by_kind": (("full_attention", "FLASH_ATTN"),)},
            "--attention-config backend_per_kind.full_attention FLASH_ATTN",
        ),
    ],
)
def test_options_of_ours_and_of_vllm_that_contradict_each_other_are_refused(
    attention: dict[str, Any], vllm: dict[str, Any], spelled: str
) -> None:
    message = refusal(layer(), options(attention, **vllm), EVERYTHING)
    ours = "target" if attention["target"] == "FIA" else "target.full_attention"
    assert f"mkv_ascend.attention.{ours} asks for fused_infer_attention and" in message
    assert f"{spelled} for flash_attention_3. Possible: one of the two" in message
    assert "leave one out" in message
    # The same backend twice, and a more exact option of ours, are no contradiction.
    select_backend(layer(), options({"target": "FA3"}, **vllm), EVERYTHING)
    finer = {"target": {"full_attention": "FIA"}}
    if "vllm_target" in vllm:
        select_backend(layer(), options(finer, **vllm), EVERYTHING)
    patterned = options({**attention, "layers": {".*": "FIA"}}, **vllm)
    assert select_backend(layer(), patterned, EVERYTHING).chosen_by is ChosenBy.PATTERN


@pytest.mark.parametrize("role", Role)
def test_options_of_one_role_leave_the_other_alone(role: Role) -> None:
    other = Role.DRAFT if role is Role.TARGET else Role.TARGET
    for given_options in (options({role.value: "FA3"}), options(**{f"vllm_{role}": "FLASH_ATTN"})):
        own = select_backend(layer(role=role), given_options, EVERYTHING)
        foreign = select_backend(layer(role=other), given_options, EVERYTHING)
        assert own.backend.name == "flash_attention_3"
        assert foreign.chosen_by is ChosenBy.DEFAULT


@pytest.mark.parametrize(
    ("given_options", "detail"),
    [
        (options({"draft": "FA3"}), "mkv_ascend.attention.draft"),
        (
            options({"draft": {"full_attention": "FA3"}}),
            "mkv_ascend.attention.draft.full_attention",
        ),
        (options({"layers": {".*3.*": "FA3"}}), "mkv_ascend.attention.layers['.*3.*']"),
        (options(vllm_draft="FLASH_ATTN"), "--speculative-config attention_backend FLASH_ATTN"),
    ],
)
def test_the_choice_says_which_option_decided(given_options: SelectionOptions, detail: str) -> None:
    request = layer(3, role=Role.DRAFT)
    assert select_backend(request, given_options, EVERYTHING).detail == detail
    # And so does the refusal, here for want of the library.
    message = refusal(request, given_options, BARE)
    assert f"flash_attention_3, asked for by {detail}, cannot serve it" in message
    assert "it needs flash_attn_npu_v3, which is not installed" in message
    assert message.endswith("Backends that would fit: fused_infer_attention")
    assert message.startswith("model.layers.3.self_attn.attn (draft, full_attention, Attention): ")


@pytest.mark.parametrize("name", ["CUSTOM", "auto", "Custom"])
def test_what_vllm_calls_the_platforms_own_backend_is_the_default(name: str) -> None:
    choice = select_backend(mla_layer(), options(vllm_target=name), BARE)
    assert (choice.backend.name, choice.chosen_by) == ("mla", ChosenBy.DEFAULT)


@pytest.mark.parametrize("name", ["FLASHINFER", "TRITON_MLA", "TORCH_SDPA", "NO_ATTENTION"])
def test_backends_of_other_devices_are_refused(name: str) -> None:
    message = refusal(layer(), options(vllm_target=name))
    assert f"--attention-backend {name}: not a backend of Ascend NPUs" in message
    assert "FLASH_ATTN" in message
    assert "mkv_ascend.attention.target" in message


@pytest.mark.parametrize("size", [80, 96, 112])
def test_head_sizes_that_the_layout_lacks_are_refused_with_those_it_has(size: int) -> None:
    """CANN would refuse them at the first request."""
    with pytest.raises(SelectionError) as refused:
        select_backend(layer(head_size=size), options(), BARE)
    assert f"64, 128, 192, 256, 512, not {size}" in str(refused.value)


FLASH = options({"target": "FA3"})


@pytest.mark.parametrize(
    ("request_", "given_options", "environment", "reason"),
    [
        (mla_layer(), options({"target": "FIA"}), EVERYTHING, "not mla"),
        (layer(kind=Kind.SLIDING_WINDOW), FLASH, EVERYTHING, "not sliding_window"),
        (
            layer(arguments=frozenset({"sinks"})),
            FLASH,
            EVERYTHING,
            "does not compute sinks (attention sinks)",
        ),
        (layer(non_causal=True), FLASH, EVERYTHING, "causal attention only"),
        (layer(head_size=320), FLASH, EVERYTHING, "multiples of 16 up to 256, not 320"),
        (
            layer(head_size=192, head_size_v=128),
            FLASH,
            EVERYTHING,
            "need the size 192 beside heads of 192, not 128",
        ),
        (
            layer(head_size=192, head_size_v=192),
            options({"target": "FIA"}),
            BARE,
            "the size 128 beside heads of 192, not 192",
        ),
        (
            layer(head_size_v=64),
            options({"target": "FIA"}),
            BARE,
            "the size 128 beside heads of 128, not 64",
        ),
        (layer(dtype="float32"), FLASH, EVERYTHING, "takes bfloat16, float16, not float32"),
        (layer(kv_cache_dtype="fp8"), FLASH, EVERYTHING, "holds bfloat16, float16, not fp8"),
        (layer(kv_cache_dtype="int8"), FLASH, EVERYTHING, "holds bfloat16, float16, not int8"),
        (layer(block_size=64), FLASH, EVERYTHING, "128 tokens do not divide --block-size 64"),
        (layer(), FLASH, BARE, "needs flash_attn_npu_v3"),
        (
            layer(),
            FLASH,
            dataclasses.replace(EVERYTHING, acl_graphs=True),
            "full ACL graph; ask for piecewise graphs",
        ),
        (
            layer(),
            FLASH,
            dataclasses.replace(EVERYTHING, device_generation=DeviceGeneration.A5),
            "runs on A2, A3, not on A5",
        ),
        (
            layer(),
            options({"target": "FIA"}),
            dataclasses.replace(BARE, batch_invariant=True),
            "for VLLM_BATCH_INVARIANT it needs batch_invariant_ops",
        ),
        (
            layer(arguments=frozenset({"sinks"})),
            options({"target": "FIA"}),
            dataclasses.replace(EVERYTHING, batch_invariant=True),
            "with sinks its results depend on the batch",
        ),
        (
            layer(num_heads=65, num_kv_heads=1),
            options({"target": "FIA"}),
            EVERYTHING,
            "at most 64 query heads may share a key head, not 65 over 1",
        ),
    ],
)
def test_an_impossible_choice_is_refused_with_the_reason(
    request_: LayerRequest, given_options: SelectionOptions, environment: Environment, reason: str
) -> None:
    message = refusal(request_, given_options, environment)
    assert reason in message
    assert request_.name in message
    fitting = fitting_backends(request_, environment)
    for entry in fitting:
        assert entry.name in message
    assert ("Backends that would fit: " in message) is bool(fitting)
    # The reason is what separates it from a choice that works.
    works = select_backend(layer(), given_options, EVERYTHING)
    assert works.chosen_by is ChosenBy.OPTION


def test_where_no_backend_fits_each_one_says_why() -> None:
    message = refusal(layer(dtype="float64"))
    assert "no backend can serve it" in message
    assert "fused_infer_attention: it takes bfloat16, float16, not float64" in message
    assert "fused_infer_attention_310p: it runs on 310P, not on A2" in message
    assert "flash_attention_3: it takes bfloat16, float16, not float64" in message


def test_a_kind_without_any_backend() -> None:
    message = refusal(layer(kind=Kind.CHUNKED_LOCAL))
    installed = metadata.version("vllm-ascend").partition("+")[0]
    assert f"vllm-ascend {installed} has no backend for chunked_local" in message


@pytest.mark.parametrize("changes", [{"head_size": 32}, {"dtype": "float32"}])
def test_layers_without_a_cache_have_the_limits_of_their_own_operator(
    changes: dict[str, Any],
) -> None:
    """Encoders attend by an operator that reads no cache: blocks and its dtype do not matter."""
    encoder = layer(non_causal=True, keeps_keys=False, **changes)
    assert "no backend can serve it" in refusal(dataclasses.replace(encoder, keeps_keys=True))
    for free in ({}, {"kv_cache_dtype": "fp8"}, {"block_size": 100}):
        served = select_backend(dataclasses.replace(encoder, **free), options(), BARE)
        assert served.backend.name == "fused_infer_attention"
    assert "its head sizes are up to 768, not 1024" in refusal(
        layer(keeps_keys=False, head_size=1024)
    )


def test_float32_needs_an_environment_that_accepts_it() -> None:
    lenient = dataclasses.replace(EVERYTHING, extra_dtypes=frozenset({"float32"}))
    choice = select_backend(layer(dtype="float32"), FLASH, lenient)
    assert choice.backend.name == "flash_attention_3"
    assert "not float32" in refusal(layer(dtype="float32"), FLASH, EVERYTHING)


def test_batch_invariance_takes_the_best_invariant_backend() -> None:
    with_library = dataclasses.replace(EVERYTHING, batch_invariant=True)
    without = dataclasses.replace(
        with_library, module_available=lambda name: name == "flash_attn_npu_v3"
    )
    library_alone = dataclasses.replace(
        with_library, module_available=lambda name: name == "batch_invariant_ops"
    )
    for environment, name in (
        (with_library, "fused_infer_attention"),
        (library_alone, "fused_infer_attention"),
        (without, "flash_attention_3"),
    ):
        assert select_backend(layer(), options(), environment) == Choice(
            layer(), catalog.find(name), ChosenBy.BATCH_INVARIANT, "VLLM_BATCH_INVARIANT"
        )
    assert "its results depend on the batch" in refusal(mla_layer(), environment=with_library)


@pytest.mark.parametrize("name", ["CUSTOM", "custom", "Auto"])
def test_vllms_option_for_a_kind_may_leave_the_choice_to_the_platform(name: str) -> None:
    given_options = options(vllm_by_kind=(("full_attention", name),), vllm_target="FLASH_ATTN")
    choice = select_backend(layer(), given_options, EVERYTHING)
    assert choice.detail == "--attention-backend FLASH_ATTN"


@pytest.mark.parametrize("role", list(Role))
def test_an_unknown_name_in_vllms_option_for_a_kind_is_refused_as_it_is_spelled(role: Role) -> None:
    given_options = options(vllm_by_kind=(("full_attention", "NONE_SUCH"),))
    message = refusal(layer(role=role), given_options)
    assert "--attention-config backend_per_kind.full_attention NONE_SUCH: not a backend" in message
    assert f"named in mkv_ascend.attention.{role}" in message


def test_one_name_for_a_role_of_several_kinds_is_refused_with_the_kinds() -> None:
    windows, mla = layer(2, kind=Kind.SLIDING_WINDOW), mla_layer(6)
    for given_options, asked in (
        (FLASH, "mkv_ascend.attention.target"),
        (options(vllm_target="FLASH_ATTN"), "--attention-backend FLASH_ATTN"),
    ):
        for request, named in (
            (windows, "model.layers.2.self_attn.attn (target, sliding_window"),
            (mla, "model.layers.6.self_attn.attn (target, mla, MLAAttention)"),
        ):
            message = refusal(request, given_options)
            assert message.startswith(named)
            assert f"asked for by {asked}, cannot serve it" in message
            assert 'mkv_ascend.attention.target: {"full_attention": "flash_attention_3"}' in message
    by_kind = options({"target": {"full_attention": "FA3"}})
    requests = (layer(), windows, mla)
    names = [select_backend(one, by_kind, EVERYTHING).backend.name for one in requests]
    assert names == ["flash_attention_3", "fused_infer_attention", "mla"]


def test_equally_specific_patterns_are_refused_unless_they_agree() -> None:
    patterns = {r".*attn\.att.": "FIA", r".*ttn\.attn.*": "FA3", ".*": "FIA"}
    message = refusal(layer(), options({"layers": patterns}))
    for part in (r"'.*attn\\.att.' (fused", r"'.*ttn\\.attn.*' (flash", "8 literal characters"):
        assert part in message
    agreeing = options({"layers": dict.fromkeys(patterns, "FA3")})
    assert select_backend(layer(), agreeing, EVERYTHING).backend.name == "flash_attention_3"


@pytest.mark.parametrize(
    ("heads", "key_heads", "fits"),
    [(64, 1, True), (65, 1, False), (512, 8, True), (513, 8, False), (512, 4, False)],
)
def test_the_limit_is_of_query_heads_for_each_key_head(
    heads: int, key_heads: int, fits: bool
) -> None:
    entry = catalog.find("fused_infer_attention")
    found = reasons_against(entry, layer(num_heads=heads, num_kv_heads=key_heads), EVERYTHING)
    expected = f"at most 64 query heads may share a key head, not {heads} over {key_heads}"
    assert found == (() if fits else (expected,))


@pytest.mark.parametrize(
    ("block_size", "fits"),
    [(None, True), (64, True), (128, True), (192, True), (96, False), (32, False)],
)
def test_one_of_the_kernel_blocks_divides_the_block(block_size: int | None, fits: bool) -> None:
    """A backend with kernel blocks of two sizes takes a multiple of either."""
    entry = dataclasses.replace(catalog.find("fused_infer_attention"), kernel_block_sizes=(128, 64))
    found = reasons_against(entry, layer(block_size=block_size), EVERYTHING)
    expected = f"its kernel blocks of 128 or 64 tokens do not divide --block-size {block_size}"
    assert found == (() if fits else (expected,))


def state_layer(**changes: Any) -> LayerRequest:
    return layer(
        **{
            "kind": Kind.MAMBA,
            "layer_class": "GatedDeltaNetAttention",
            "layer_backend": GATED_DELTA_NET,
            "head_size": 0,
            "block_size": 1024,
        }
        | changes
    )


def test_a_layer_whose_class_names_its_backend_keeps_it() -> None:
    # One name for the role is about what can be chosen; it does not concern this layer.
    for given_options in (options(), FLASH, options(vllm_target="FLASH_ATTN")):
        choice = select_backend(state_layer(), given_options, BARE)
        assert (choice.backend.name, choice.chosen_by) == ("gated_delta_net", ChosenBy.LAYER)
        assert "GatedDeltaNetAttention" in choice.detail


def test_dtypes_and_sizes_of_such_a_layer_are_its_classs_own_affair() -> None:
    odd = state_layer(
        kv_cache_dtype="float8_e4m3fn", dtype="float64", arguments=frozenset({"sinks"})
    )
    assert select_backend(odd, options(), BARE).backend.name == "gated_delta_net"


def test_a_pattern_cannot_change_what_a_class_names() -> None:
    message = refusal(state_layer(), options({"layers": {".*": "FIA"}}))
    assert "GatedDeltaNetAttention names its backend itself" in message
    assert "take it out of the pattern '.*'" in message


def test_a_class_that_names_an_unknown_backend_is_refused() -> None:
    message = refusal(state_layer(layer_backend="other.package:Backend"))
    assert "other.package:Backend, which the catalog does not hold" in message


def test_a_class_that_names_the_backend_of_another_device_is_refused() -> None:
    environment = dataclasses.replace(BARE, device_generation=DeviceGeneration.ATLAS_310P)
    assert "not on 310P" in refusal(state_layer(), environment=environment)


def test_a_pattern_that_matches_no_layer_is_an_error() -> None:
    names = [layer(n).name for n in range(4)]
    good = options({"layers": {r".*layers\.1\..*": "FIA"}})
    assert unmatched_patterns(good, names) == ()
    require_all_matched(good, names)
    bad = options({"layers": {r"layers\.1\.": "FIA", r".*layers\.1\..*": "FIA", "x": "FIA"}})
    part, foreign = unmatched_patterns(bad, names)
    assert "put .* around it" in part
    assert "model.layers.1.self_attn.attn" in part
    assert foreign.endswith(f"matches no layer; layers are, for instance: {', '.join(names[:3])}")
    with pytest.raises(SelectionError, match="matches no layer"):
        require_all_matched(bad, names)


def test_options_without_effect_are_warnings() -> None:
    requests = [layer(), mla_layer(1)]
    used = options({"target": {"full_attention": "FIA", "mla": "mla"}})
    assert unused_options(used, requests) == ()
    unused = options({"target": {"sparse_mla": "sparse_mla"}, "draft": "FIA"})
    kind, draft = unused_options(unused, requests)
    path = "mkv_ascend.attention.target.sparse_mla"
    assert kind == f"{path} has no effect: no target layer is sparse_mla"
    assert draft == "mkv_ascend.attention.draft has no effect: there is no draft"


@pytest.fixture
def better_backend() -> BackendEntry:
    entry = dataclasses.replace(
        catalog.find("flash_attention_3"),
        name="my_attention",
        class_path="my_package:MyBackend",
        aliases=frozenset(),
        vllm_names=frozenset({"FLEX_ATTENTION"}),
        required_modules=frozenset({"my_package"}),
        graphs=GraphSupport.ALWAYS,
        rank=1,
    )
    return catalog.register(entry)


def test_a_registered_backend_is_chosen_by_rank_option_and_vllms_name(
    better_backend: BackendEntry,
) -> None:
    assert select_backend(layer(), options(), EVERYTHING).backend is better_backend
    assert select_backend(layer(), options(), BARE).backend.name == "fused_infer_attention"
    for given_options in (
        options({"target": "my_attention"}),
        options(vllm_target="FLEX_ATTENTION"),
    ):
        assert select_backend(layer(), given_options, EVERYTHING).backend is better_backend


def test_modules_are_looked_up_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module_is_installed("antigravity")
    assert "antigravity" not in sys.modules
    assert not module_is_installed("a_module_that_nobody_has")
    # A stand-in has no file to be found by.
    monkeypatch.setitem(sys.modules, "a_stand_in", ModuleType("a_stand_in"))
    assert module_is_installed("a_stand_in")


requests = st.builds(
    layer,
    st.integers(0, 99),
    role=st.sampled_from(Role),
    kind=st.sampled_from(Kind),
    dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
    kv_cache_dtype=st.sampled_from(["auto", "int8", "bfloat16", "fp8"]),
    head_size=st.sampled_from([16, 64, 100, 128, 256, 512, 576]),
    arguments=st.frozensets(st.sampled_from(["sinks", "logits_soft_cap"])),
    non_causal=st.booleans(),
    block_size=st.sampled_from([None, 16, 128, 1024]),
)
environments = st.builds(
    Environment,
    st.sampled_from(DeviceGeneration),
    module_available=st.sampled_from([lambda name: True, lambda name: False]),
    batch_invariant=st.booleans(),
    acl_graphs=st.booleans(),
)


@given(requests, environments)
def test_the_default_fits_or_nothing_does(request_: LayerRequest, environment: Environment) -> None:
    fitting = fitting_backends(request_, environment)
    try:
        choice = select_backend(request_, options(), environment)
    except SelectionError:
        assert not fitting
    else:
        assert choice.backend is fitting[0]
        assert choice.backend.rank == min(entry.rank for entry in fitting)


@given(requests, environments, st.sampled_from(["FIA", "FA3", "mla", "sparse_mla"]))
def test_what_is_asked_for_is_taken_or_refused_never_replaced(
    request_: LayerRequest, environment: Environment, name: str
) -> None:
    asked = catalog.find(name)
    given_options = options({"target": name, "draft": name})
    if asked in fitting_backends(request_, environment):
        assert select_backend(request_, given_options, environment).backend is asked
    else:
        message = refusal(request_, given_options, environment)
        assert request_.name in message
        assert asked.name in message


def test_a_cache_of_another_plain_dtype_is_served_where_rows_are_cast() -> None:
    request = layer(kv_cache_dtype="float16")
    assert request.cast_dtype == "float16"
    assert select_backend(request, options(), BARE).backend.name == "fused_infer_attention"
    assert layer(kv_cache_dtype="bfloat16").cast_dtype is None
    assert layer(kv_cache_dtype="int8").cast_dtype is None
    assert "the model's dtype, bfloat16, not float16" in refusal(
        mla_layer(kv_cache_dtype="float16")
    )
    with_sinks = refusal(layer(kv_cache_dtype="float16", arguments=frozenset({"sinks"})))
    assert "with sinks its cache holds the model's dtype, bfloat16, not float16" in with_sinks
    assert "its cache holds bfloat16, float16, int8, not float32" in refusal(
        layer(kv_cache_dtype="float32")
    )
