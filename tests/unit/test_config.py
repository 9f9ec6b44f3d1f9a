# SPDX-License-Identifier: Apache-2.0
"""Options: what is accepted, what is refused, and with which words."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkv_ascend.attention import catalog
from mkv_ascend.attention.options import AttentionOptions, RoleOptions, WindowBound
from mkv_ascend.config import (
    ConfigError,
    DraftingOptions,
    KvCacheOptions,
    LayoutOptions,
    MkvConfig,
    parse_config,
)
from mkv_ascend.layout.kind import Kind

REPOSITORY = Path(__file__).resolve().parents[2]
OPTIONS = ("target", "draft", "layers", "window_bound")


def parse_attention(attention: Any) -> AttentionOptions:
    return parse_config({"mkv_ascend": {"attention": attention}}).attention


def problems_of(options: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_config(options)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


@pytest.mark.parametrize("given_options", [None, {}, {"other": 1}, {"mkv_ascend": {}}])
def test_nothing_given_means_the_defaults(given_options: Any) -> None:
    assert parse_config(given_options) == MkvConfig()
    assert parse_config(given_options).attention.window_bound is WindowBound.EXACT


def test_one_name_for_a_role_serves_every_kind() -> None:
    options = parse_attention({"target": "mla", "draft": "fa3"})
    assert options.target.backend_of(Kind.MLA) == "mla"
    assert options.target.backend_of(Kind.FULL_ATTENTION) == "mla"
    # Aliases become the one name under which the catalog holds the backend.
    assert options.draft == RoleOptions(every_kind="flash_attention_3")


def test_a_mapping_serves_its_kinds_only() -> None:
    options = parse_attention({"target": {"full_attention": "FLASH_ATTN"}})
    assert options.target.backend_of(Kind.FULL_ATTENTION) == "flash_attention_3"
    assert options.target.backend_of(Kind.SLIDING_WINDOW) is None


def test_layers_keep_their_order() -> None:
    options = parse_attention({"layers": {r"b\.1": "mla", "a.*": "FIA"}})
    assert options.layers == ((r"b\.1", "mla"), ("a.*", "fused_infer_attention"))


def test_window_bound() -> None:
    assert parse_attention({"window_bound": "vllm_ascend"}).window_bound is WindowBound.VLLM_ASCEND


def test_the_config_is_frozen_and_hashable() -> None:
    first = parse_config({"mkv_ascend": {"attention": {"draft": {"mla": "mla"}}}})
    second = parse_config({"mkv_ascend": {"attention": {"draft": {"mla": "ASCEND_MLA"}}}})
    assert len({first, second, MkvConfig()}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.attention = AttentionOptions()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("attention", "parts"),
    [
        ({"targt": "mla"}, ("mkv_ascend.attention.targt", "did you mean 'target'?", "layers")),
        ({"target": "mlaa"}, ("mkv_ascend.attention.target", "'mlaa'", "did you mean 'mla'?")),
        ({"target": 3}, ("mkv_ascend.attention.target", "3 (int)", "kind to backend name")),
        ({"target": ["mla"]}, ("mkv_ascend.attention.target", "['mla'] (list)")),
        ({"target": None}, ("mkv_ascend.attention.target", "None (NoneType)")),
        ({"draft": {"mlla": "mla"}}, ("attention.draft.mlla", "did you mean 'mla'?", "mamba")),
        ({"draft": {"mla": "FIA"}}, ("attention.draft.mla", "'FIA'", "allowed: mla")),
        ({"draft": {"mla": True}}, ("attention.draft.mla", "True (bool)", "allowed: mla")),
        ({"draft": {"mamba": "mamba_2"}}, ("attention.draft.mamba", "layer's class")),
        ({"draft": {"chunked_local": "FIA"}}, ("chunked_local", "allowed: none")),
        ({"target": "gated_delta_net"}, ("attention.target", "layer's class", "allowed: fused")),
        ({"layers": {"(": "mla"}}, ("attention.layers['(']", "not a regular expression")),
        ({"layers": {"a": "b"}}, ("attention.layers['a']", "'b'", "allowed:")),
        ({"layers": ["mla"]}, ("mkv_ascend.attention.layers", "regular expression to backend")),
        ({"layers": {1: "mla"}}, ("mkv_ascend.attention.layers", "{1: 'mla'}")),
        ({"window_bound": "inclusive"}, ("window_bound", "'inclusive'", "exact, vllm_ascend")),
        ({"window_bound": True}, ("window_bound", "True", "exact, vllm_ascend")),
        ("mla", ("mkv_ascend.attention", "'mla' (str)", "target, draft, layers")),
    ],
)
def test_a_problem_names_the_key_the_value_and_what_is_allowed(
    attention: Any, parts: tuple[str, ...]
) -> None:
    (problem,) = problems_of({"mkv_ascend": {"attention": attention}})
    for part in parts:
        assert part in problem


def test_all_problems_are_reported_at_once() -> None:
    attention = {"target": 1, "draft": {"x": "y"}, "layers": {"[": 2}, "window_bound": 3, "z": 4}
    assert len(problems_of({"mkv_ascend": {"attention": attention, "a": 5}})) == 7


@pytest.mark.parametrize("key", ["mkv", "mkv-ascend", "MKV_ASCEND", "mkv_asend"])
def test_a_slip_in_the_namespace_is_not_silent(key: str) -> None:
    (problem,) = problems_of({key: {"attention": {}}})
    assert key in problem
    assert "did you mean 'mkv_ascend'?" in problem


@given(st.text(max_size=12).filter(lambda key: key not in OPTIONS))
def test_an_unknown_key_never_passes(key: str) -> None:
    (problem,) = problems_of({"mkv_ascend": {"attention": {key: "mla"}}})
    assert f"mkv_ascend.attention.{key} " in problem


@given(st.text(max_size=12).filter(lambda key: key not in {kind.value for kind in Kind}))
def test_an_unknown_kind_never_passes(key: str) -> None:
    (problem,) = problems_of({"mkv_ascend": {"attention": {"target": {key: "mla"}}}})
    assert f"mkv_ascend.attention.target.{key} " in problem


@given(st.sampled_from(OPTIONS), st.none() | st.booleans() | st.integers() | st.floats())
def test_a_scalar_that_is_no_text_never_passes(option: str, value: object) -> None:
    (problem,) = problems_of({"mkv_ascend": {"attention": {option: value}}})
    assert f"mkv_ascend.attention.{option} " in problem


@given(st.sampled_from(list(Kind)), st.data())
def test_every_choosable_backend_of_a_kind_is_accepted(kind: Kind, data: st.DataObject) -> None:
    choosable = [entry for entry in catalog.entries_for(kind) if not entry.chosen_by_layer]
    if not choosable:
        return
    entry = data.draw(st.sampled_from(choosable))
    name = data.draw(st.sampled_from([entry.name, *sorted(entry.aliases | entry.vllm_names)]))
    assert parse_attention({"target": {kind.value: name}}).target.backend_of(kind) == entry.name


def option_paths(config_class: type[Any], prefix: str = "") -> list[str]:
    """The dotted path of every option, from the fields of the dataclasses."""
    paths = []
    for field in dataclasses.fields(config_class):
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if isinstance(default, (AttentionOptions, LayoutOptions, KvCacheOptions, DraftingOptions)):
            paths += option_paths(type(default), f"{prefix}{field.name}.")
        else:
            paths.append(f"{prefix}{field.name}")
    return paths


def test_every_option_has_its_section_in_the_documentation() -> None:
    page = (REPOSITORY / "docs" / "configuration.md").read_text()
    assert option_paths(MkvConfig) == [
        *(f"attention.{option}" for option in OPTIONS),
        "layout.shared_pages",
        "layout.without_draft",
        "kv_cache.draft_dtype",
        "kv_cache.replicate_draft",
        "drafting.window",
        "drafting.give_up_below",
        "start_up_report",
    ]
    for path in option_paths(MkvConfig):
        assert f"## `{path}`" in page


def test_the_examples_of_the_documentation_are_accepted() -> None:
    page = (REPOSITORY / "docs" / "configuration.md").read_text()
    examples = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert len(examples) >= len(OPTIONS)
    for example in examples:
        assert parse_config(json.loads(example)) != MkvConfig()


def test_a_file_is_named_by_an_absolute_path() -> None:
    """Processes of an engine need not have the same working directory."""
    assert parse_config({"mkv_ascend": {"start_up_report": "/a/b"}}).start_up_report == "/a/b"
    for wrong in ("a/b", "", 1, ["/a"]):
        (problem,) = problems_of({"mkv_ascend": {"start_up_report": wrong}})
        assert problem.startswith("mkv_ascend.start_up_report is ")
        assert "an absolute path" in problem


@pytest.mark.parametrize(
    ("section", "options", "read"),
    [
        ("layout", {}, LayoutOptions(shared_pages=True)),
        *(
            ("layout", {name: value}, dataclasses.replace(LayoutOptions(), **{name: value}))
            for name in ("shared_pages", "without_draft")
            for value in (True, False)
        ),
        ("kv_cache", {}, KvCacheOptions(None, replicate_draft=False)),
        ("kv_cache", {"draft_dtype": "float16"}, KvCacheOptions("float16")),
        ("kv_cache", {"replicate_draft": True}, KvCacheOptions(None, replicate_draft=True)),
        ("drafting", {}, DraftingOptions(None, give_up_below=None)),
        ("drafting", {"window": 4096}, DraftingOptions(4096)),
        ("drafting", {"give_up_below": 0.25}, DraftingOptions(give_up_below=0.25)),
    ],
)
def test_options_of_the_other_sections(section: str, options: Any, read: Any) -> None:
    assert getattr(parse_config({"mkv_ascend": {section: options}}), section) == read


TRUE_OR_FALSE = "true or false"


@pytest.mark.parametrize(
    ("option", "values", "allowed"),
    [
        ("layout.shared_pages", [1, None], TRUE_OR_FALSE),
        ("layout.shared_page", [True], r"did you mean 'shared_pages'\?"),
        ("kv_cache.replicate_draft", [1, "true", None], TRUE_OR_FALSE),
        (
            "kv_cache.draft_dtype",
            ["int8", "fp8", "auto", ["float16"], 16],
            "bfloat16, float16, float32",
        ),
        (
            "drafting.window",
            [1, 0, -4096, 2**31, 4096.0, "4096", True, [4096]],
            "allowed: 2 to 2147483647, the to",
        ),
        (
            "drafting.give_up_below",
            [0, 1, 0.0, 1.0, -0.1, 20, float("nan"), "0.2", True, [0.2]],
            "allowed: more than 0 and less than",
        ),
    ],
)
def test_values_that_an_option_cannot_have(option: str, values: list[Any], allowed: str) -> None:
    section, _, name = option.partition(".")
    for value in values:
        (problem,) = problems_of({"mkv_ascend": {section: {name: value}}})
        assert re.match(rf"mkv_ascend\.{option} .*{allowed}", problem), problem


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.just(10**30)
)
words = st.one_of(
    st.sampled_from(
        [
            *("attention", "layout", "kv_cache", "drafting", "window", "give_up_below", "target"),
            *("draft", "layers", "window_bound", "shared_pages", "exact", "mla", "FIA"),
            *("draft_dtype", "replicate_draft", "float16", "full_attention"),
            *("(?i)x", "((", "a{99999999999999999999}"),
        ]
    ),
    st.text(max_size=4),
)
anything = st.recursive(
    st.one_of(scalars, words),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(words, inner, max_size=3),
        st.dictionaries(scalars.filter(lambda key: key == key), inner, max_size=1),
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(anything)
def test_anything_is_read_or_refused_with_its_problems(value: Any) -> None:
    """What vLLM hands over is any JSON that a user wrote."""
    options = {"mkv_ascend": value}
    try:
        config = parse_config(options)
    except ConfigError as error:
        refusal = error
    else:
        assert hash(config) == hash(parse_config(options))
        return
    assert refusal.problems
    assert all(problem.startswith("mkv_ascend") for problem in refusal.problems)
    assert len(str(refusal)) < 5000


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(?i)X", None),
        ("a{99999999999999999999}", "repeats too often"),
        ("(" * 300 + ")" * 300, "nested deeper than 50"),
        (r"(.)\1", None),
        ("(a|a)*b", "can match a name in too many ways"),
        ("[", "is not a regular expression"),
        ("x" * 5000, "has 5000 characters"),
    ],
)
def test_patterns_are_read_when_the_options_are(pattern: str, said: str | None) -> None:
    given_options = {"mkv_ascend": {"attention": {"layers": {pattern: "mla"}}}}
    if said is None:
        assert parse_config(given_options).attention.layers == ((pattern, "mla"),)
        return
    with pytest.raises(ConfigError, match=said) as error:
        parse_config(given_options)
    assert len(str(error.value)) < 1000


def test_a_number_of_thousands_of_digits_is_refused_without_being_shown() -> None:
    """Python refuses to write it out."""
    with pytest.raises(ConfigError, match=r"an? int that is too large to show"):
        parse_config({"mkv_ascend": {"layout": {"shared_pages": 10**5000}}})
