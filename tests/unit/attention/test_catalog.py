# SPDX-License-Identifier: Apache-2.0
"""The catalog, and that it says of vllm-ascend what its installed sources say."""

import ast
import dataclasses
import json
import re
from pathlib import Path

import pytest

from mkv_ascend.attention import catalog
from mkv_ascend.attention.catalog import ASCEND_BACKENDS
from mkv_ascend.attention.entry import BackendEntry, GraphSupport, HeadSizes
from mkv_ascend.config import parse_config
from mkv_ascend.layout.kind import Kind
from tests.support import hosts
from tests.unit.attention.sources import class_of, source_of

OF_OTHERS = {
    # Where a drafter of method dspark adapts how many of its tokens are verified.
    ("vllm_ascend_0_30", "sparse_mla"): {GraphSupport.ALWAYS},
    ("vllm_ascend_0_30", "compressed_mla"): {GraphSupport.ALWAYS},
    # The builder of Bailing's linear attention, which is a second class in the module.
    ("vllm_ascend_0_30", "linear_attention"): {GraphSupport.UNIFORM_BATCH},
}
"""Host and backend -> answers in the backend's module that are not the backend's own."""
REPOSITORY = Path(__file__).resolve().parents[3]


def by_name(entry: BackendEntry) -> str:
    return entry.name


@pytest.mark.parametrize("entry", ASCEND_BACKENDS, ids=by_name)
def test_the_class_exists(entry: BackendEntry) -> None:
    assert class_of(entry.class_path).name in entry.class_path


@pytest.mark.parametrize("entry", ASCEND_BACKENDS, ids=by_name)
def test_kernel_block_sizes_are_those_of_the_class(entry: BackendEntry) -> None:
    methods = {
        node.name: node
        for node in class_of(entry.class_path).body
        if isinstance(node, ast.FunctionDef)
    }
    method = methods.get("get_supported_kernel_block_sizes")
    if method is None:
        assert entry.chosen_by_layer, "a backend that can be chosen should say its block sizes"
        return
    # The last statement: a branch before it is for one model that has caches of its own.
    answer = method.body[-1]
    assert isinstance(answer, ast.Return)
    assert answer.value is not None
    assert ast.literal_eval(answer.value) == list(entry.kernel_block_sizes)


@pytest.mark.parametrize(
    ("entry_name", "module_name"),
    [
        ("fused_infer_attention", "vllm_ascend.attention.attention_v1"),
        ("mla", "vllm_ascend.attention.mla_v1"),
        ("sparse_mla", "vllm_ascend.attention.sfa_v1"),
        ("compressed_mla", "vllm_ascend.attention.dsa_v1"),
        ("gated_delta_net", "vllm_ascend.ops.gdn_attn_builder"),
        ("linear_attention", "vllm.v1.attention.backends.linear_attn"),
    ],
)
def test_graph_support_is_what_the_builder_answers(entry_name: str, module_name: str) -> None:
    answers = {
        "ALWAYS": GraphSupport.ALWAYS,
        "UNIFORM_BATCH": GraphSupport.UNIFORM_BATCH,
        "UNIFORM_SINGLE_TOKEN_DECODE": GraphSupport.SINGLE_TOKEN_DECODE,
        "NEVER": GraphSupport.NEVER,
    }
    found = {
        answers[node.attr]
        for node in ast.walk(source_of(module_name))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "AttentionCGSupport"
    }
    assert found - OF_OTHERS.get((hosts.NAME, entry_name), set()) == {
        catalog.find(entry_name).graphs
    }


STATES = [entry for entry in ASCEND_BACKENDS if Kind.MAMBA in entry.kinds]


@pytest.mark.parametrize("entry", STATES, ids=by_name)
def test_states_are_of_any_plain_dtype_and_chosen_by_their_layer(entry: BackendEntry) -> None:
    """A state has neither heads nor kernel blocks: one block holds one."""
    assert entry.kinds == {Kind.MAMBA}
    assert entry.chosen_by_layer is True
    assert entry.model_dtypes == entry.kv_cache_dtypes == {"bfloat16", "float16", "float32"}
    assert entry.head_sizes == HeadSizes()
    assert entry.kernel_block_sizes == (1,)
    verifies = entry.name != "linear_attention"  # whose decode takes one token
    support = GraphSupport.UNIFORM_BATCH if verifies else GraphSupport.SINGLE_TOKEN_DECODE
    assert entry.graphs is support


def test_backends_that_layers_choose_have_no_order() -> None:
    assert len({entry.rank for entry in ASCEND_BACKENDS if entry.chosen_by_layer}) == 1


def test_required_module_is_the_one_that_flash_attention_3_imports() -> None:
    imported = {
        node.module
        for node in source_of("vllm_ascend.attention.fa3_v1").body
        if isinstance(node, ast.ImportFrom)
    }
    assert catalog.find("flash_attention_3").required_modules <= imported


def test_names_that_vllm_takes_are_members_of_its_enum() -> None:
    (enum,) = [
        node
        for node in source_of("vllm.v1.attention.backends.registry").body
        if isinstance(node, ast.ClassDef) and node.name == "AttentionBackendEnum"
    ]
    members = {
        target.id
        for node in enum.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for entry in ASCEND_BACKENDS:
        assert entry.vllm_names <= members
        # An alias that vLLM's option could also take must be meant there.
        assert not entry.aliases & members


def test_find_by_name_and_alias_without_case() -> None:
    fused = catalog.find("fused_infer_attention")
    for name in ("FUSED_INFER_ATTENTION", "fia", "Ascend"):
        assert catalog.find(name) is fused
    assert catalog.find("FLASH_ATTN").name == "flash_attention_3"
    assert catalog.find_class(fused.class_path) is fused
    assert catalog.find_class("nowhere:Nothing") is None


def test_an_unknown_name_says_what_exists() -> None:
    with pytest.raises(catalog.CatalogError) as caught:
        catalog.find("flash_attention_2")
    assert "did you mean 'flash_attention_3'?" in str(caught.value)
    assert caught.value.hint == "did you mean 'flash_attention_3'?"
    for entry in catalog.entries():
        assert entry.name in str(caught.value)


def test_no_name_is_near_to_one_that_is_like_none() -> None:
    with pytest.raises(catalog.CatalogError) as caught:
        catalog.find("zzz")
    assert "did you mean" not in str(caught.value)
    assert caught.value.hint == catalog.CatalogError("the name is taken").hint == ""


def test_entries_for_a_kind_come_best_first() -> None:
    names = [entry.name for entry in catalog.entries_for(Kind.FULL_ATTENTION)]
    assert names[0] == "fused_infer_attention"
    assert names[-1] == "flash_attention_3"
    assert [entry.name for entry in catalog.entries_for(Kind.MLA)] == ["mla"]
    assert catalog.entries_for(Kind.CHUNKED_LOCAL) == ()


@pytest.fixture
def registered() -> BackendEntry:
    entry = dataclasses.replace(
        catalog.find("mla"),
        name="my_mla",
        class_path="my_package.backends:MyBackend",
        aliases=frozenset({"MINE"}),
        rank=1,
    )
    return catalog.register(entry)


def test_another_package_can_register_a_backend(registered: BackendEntry) -> None:
    assert catalog.find("mine") is registered
    assert catalog.entries_for(Kind.MLA)[0] is registered
    assert catalog.entries()[0] is registered


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"name": "FIA", "aliases": frozenset()}, "fia (of fused_infer_attention)"),
        ({"name": "new"}, "ascend_mla (of mla)"),
        ({"name": "new", "aliases": frozenset(), "class_path": "a.b.C"}, "module:Class"),
        ({"name": "new", "aliases": frozenset(), "kinds": frozenset()}, "may not be empty"),
        ({"name": "new", "aliases": frozenset(), "generations": frozenset()}, "may not be empty"),
        ({"name": "new", "aliases": frozenset(), "kernel_block_sizes": ()}, "may not be empty"),
    ],
)
def test_impossible_registrations_are_refused(changes: dict[str, object], part: str) -> None:
    before = catalog.entries()
    with pytest.raises(ValueError, match=re.escape(part)):
        catalog.register(dataclasses.replace(catalog.find("mla"), **changes))  # type: ignore[arg-type]
    assert catalog.entries() == before


@pytest.mark.parametrize(
    ("sizes", "holds", "refuses", "text"),
    [
        (HeadSizes(), (1, 77), (), "any"),
        (HeadSizes(multiple_of=16), (16, 4096), (8, 17), "multiples of 16"),
        (HeadSizes(multiple_of=16, maximum=256), (16, 256), (272, 100), "multiples of 16 up to 25"),
        (HeadSizes(exactly=(576,)), (576,), (512, 1152), "576"),
    ],
)
def test_head_sizes(
    sizes: HeadSizes, holds: tuple[int, ...], refuses: tuple[int, ...], text: str
) -> None:
    assert all(sizes.holds(size) for size in holds)
    assert not any(sizes.holds(size) for size in refuses)
    assert str(sizes).startswith(text)


def test_the_examples_of_the_documentation_work() -> None:
    page = (REPOSITORY / "docs" / "attention_backends.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "docs/attention_backends.md", "exec"), {})
    assert catalog.entries_for(Kind.FULL_ATTENTION)[0].name == "my_attention"
    options = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert options
    for option in options:
        parse_config(json.loads(option))
