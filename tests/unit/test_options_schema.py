# SPDX-License-Identifier: Apache-2.0
"""The schema of the options takes what the parser takes; jsonschema judges drawn options."""

from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkv_ascend.attention import catalog
from mkv_ascend.config import ConfigError, options_schema, parse_config
from mkv_ascend.layout.kind import Kind

SCHEMA = options_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def spellings() -> list[str]:
    """Names of backends as the catalog spells them, those that no option may choose included."""
    return sorted({n for e in catalog.entries() for n in (e.name, *e.aliases, *e.vllm_names)})


ALONE = {
    ("attention", "target"): [*spellings(), "mlaa", "", None, {}, {"mlaa": "mla"}],
    ("attention", "draft"): [
        {kind.value: name} for kind in Kind for name in (*spellings(), "mlaa", None)
    ],
    ("attention", "layers"): [
        *({"a.*": name} for name in (*spellings(), "mlaa", None)),
        *({"x" * length: "mla"} for length in (1000, 1001)),
    ],
    ("attention", "window_bound"): ["exact", "vllm_ascend", "Exact", None],
    ("layout", "shared_pages"): [None, True, False, 1, "true"],
    ("layout", "without_draft"): [None, True, False, 1, "true"],
    ("kv_cache", "draft_dtype"): [None, "bfloat16", "float16", "float32", "int8", 16],
    ("kv_cache", "replicate_draft"): [None, True, False, 1, "true"],
    ("drafting", "give_up_below"): [None, 0, 1, 0.2, 0.999, 1.5, -0.2, True, "0.2"],
    ("drafting", "window"): [None, 1, 2, 4096, (1 << 31) - 1, 1 << 31, True, "4096"],
}
"""Values of single options, right and wrong."""

NAMES = st.sampled_from([*spellings(), "mlaa", ""])
ANYTHING = st.sampled_from([None, True, 0, 1.5, "x", "/", [], {}, {"x": 1}])


def mapping(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Some of these keys, now and then another one, now and then no mapping at all."""
    right = st.fixed_dictionaries({}, optional=values)
    slip = st.fixed_dictionaries({"slip": ANYTHING}, optional=values)
    return st.one_of(right, right, right, slip, ANYTHING)


ROLE = st.one_of(NAMES, mapping(**{kind.value: st.one_of(NAMES, ANYTHING) for kind in Kind}))
LAYERS = st.dictionaries(
    st.sampled_from(["a.*", "model.layers.0", "x" * 1000, "x" * 1001]), NAMES, max_size=2
)
OPTIONS = mapping(
    attention=mapping(
        target=ROLE,
        draft=ROLE,
        layers=st.one_of(LAYERS, ANYTHING),
        window_bound=st.sampled_from(ALONE["attention", "window_bound"]),
    ),
    layout=mapping(
        shared_pages=st.sampled_from(ALONE["layout", "shared_pages"]),
        without_draft=st.sampled_from(ALONE["layout", "without_draft"]),
    ),
    kv_cache=mapping(draft_dtype=st.sampled_from(ALONE["kv_cache", "draft_dtype"])),
    drafting=mapping(
        window=st.sampled_from(ALONE["drafting", "window"]),
        give_up_below=st.sampled_from(ALONE["drafting", "give_up_below"]),
    ),
    start_up_report=st.sampled_from([None, "/x.json", "x.json", "", 1]),
)
ADDITIONAL = st.one_of(
    st.fixed_dictionaries({"mkv_ascend": OPTIONS}),
    st.fixed_dictionaries({"mkv_ascend": OPTIONS, "others": ANYTHING}),
    st.dictionaries(st.sampled_from(["mkv", "MKV_ascend", "mkv_ascend2", "ascend"]), ANYTHING),
)


def is_taken(options: Any) -> bool:
    try:
        parse_config(options)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("key", ALONE, ids=".".join)
def test_it_takes_what_the_parser_takes_of_an_option(key: tuple[str, str]) -> None:
    outer, inner = key
    taken = []
    for value in ALONE[key]:
        options = {"mkv_ascend": {outer: {inner: value}}}
        assert VALIDATOR.is_valid(options) == is_taken(options), value
        taken.append(is_taken(options))
    assert set(taken) == {True, False}


@settings(max_examples=300, deadline=None)
@given(ADDITIONAL)
def test_it_takes_what_the_parser_takes(options: Any) -> None:
    assert VALIDATOR.is_valid(options) == is_taken(options)


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("pattern", ["(", "(a|a)*b"])
def test_patterns_are_left_to_the_parser(pattern: str) -> None:
    """What the docs say that no schema can tell."""
    options = {"mkv_ascend": {"attention": {"layers": {pattern: "mla"}}}}
    assert VALIDATOR.is_valid(options)
    assert not is_taken(options)


def test_every_option_and_default_is_described() -> None:
    def walk(schema: Any) -> int:
        if not isinstance(schema, dict) or "properties" not in schema:
            return 0
        described = 0
        for name, inner in schema["properties"].items():
            assert inner.get("description"), name
            described += 1 + walk(inner)
        return described

    # The namespace, its five options, and four, two, two and two below these.
    assert walk(SCHEMA) == 16
