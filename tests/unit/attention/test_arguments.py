# SPDX-License-Identifier: Apache-2.0
"""Arguments of attention layers: none is unknown, and none that nothing computes is served."""

import ast
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from mkv_ascend.attention import catalog, selection
from mkv_ascend.attention.arguments import (
    OF_LAYER_CLASSES,
    OPTIONAL,
    OTHER_NAMES,
    REQUIRED,
    arguments_told_by,
    described,
    optional_arguments,
)
from mkv_ascend.attention.entry import BackendEntry, DeviceGeneration, Environment, LayerRequest
from mkv_ascend.attention.selection import SelectionError, SelectionOptions
from mkv_ascend.layout.kind import Kind, Role
from tests.unit.attention.sources import class_of, folder_of, source_of

LAYERS = "vllm.model_executor.layers.attention"
KNOWN = OPTIONAL.keys() | REQUIRED | OTHER_NAMES.keys()
IMPLEMENTATIONS = {
    "fused_infer_attention": "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl",
    "flash_attention_3": "vllm_ascend.attention.fa3_v1:AscendFAImpl",
    "mla": "vllm_ascend.attention.mla_v1:AscendMLAImpl",
    "sparse_mla": "vllm_ascend.attention.sfa_v1:AscendSFAImpl",
    "fused_infer_attention_310p": (
        "vllm_ascend._310p.attention.attention_v1:AscendAttentionBackendImpl310"
    ),
}
EVERYTHING = Environment(DeviceGeneration.A2, module_available=lambda name: True)


def method(of: ast.ClassDef, name: str = "__init__") -> ast.FunctionDef | None:
    found = (x for x in of.body if isinstance(x, ast.FunctionDef) and x.name == name)
    return next(found, None)


def arguments_of(initialise: ast.FunctionDef | None) -> set[str]:
    """Names of the arguments that a method lists, but ``self``."""
    if initialise is None:
        return set()
    given = initialise.args
    return {x.arg for x in (*given.posonlyargs, *given.args, *given.kwonlyargs)} - {"self"}


@pytest.mark.parametrize(
    "class_path",
    [
        f"{LAYERS}.attention:Attention",
        f"{LAYERS}.mla_attention:MLAAttention",
        "vllm.v1.attention.backend:AttentionImpl",
        "vllm.v1.attention.backend:MLAAttentionImpl",
        *IMPLEMENTATIONS.values(),
    ],
)
def test_each_argument_of_the_installed_layers_and_implementations_is_known(
    class_path: str,
) -> None:
    unknown = arguments_of(method(class_of(class_path))) - KNOWN
    assert not unknown, "say in attention/arguments.py what it asks for, and who computes it"


def test_each_subclass_of_vllms_layer_is_known_by_what_it_takes_for_itself() -> None:
    for file in folder_of(LAYERS).glob("*.py"):
        for layer in ast.walk(ast.parse(file.read_text())):
            if isinstance(layer, ast.ClassDef) and "Attention" in map(ast.unparse, layer.bases):
                own = arguments_of(method(layer)) - KNOWN - {"attention_chunk_size"}
                assert own <= {OF_LAYER_CLASSES.get(layer.name)}, layer.name


def calls_of_layers(module: ast.Module) -> Iterator[ast.Call]:
    """Calls of vLLM's own layers in a module of models, by the names that it imports them as."""
    names = {
        alias.asname or alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(LAYERS)
        for alias in node.names
        if alias.name in {"Attention", "EncoderOnlyAttention", "CrossAttention"}
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def keywords_of(call: ast.Call) -> Iterator[str]:
    """Names that a call gives, those of a dictionary that it spells out included."""
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg
        for node in ast.walk(keyword.value) if keyword.arg is None else ():
            if isinstance(node, ast.Dict):
                yield from (key.value for key in node.keys if isinstance(key, ast.Constant))


def test_each_argument_that_a_model_of_vllm_gives_its_layers_is_known() -> None:
    """The rest goes to the implementation by **kwargs, where vllm-ascend's loses it."""
    given: dict[str, str] = {}
    for file in sorted(folder_of("vllm.model_executor.models").rglob("*.py")):
        for call in calls_of_layers(ast.parse(file.read_text())):
            given.update(dict.fromkeys(keywords_of(call), file.name))
    assert len(given) > 12
    assert {name: file for name, file in given.items() if name not in KNOWN} == {}


def reads(node: ast.AST) -> set[str]:
    """Attributes of ``self`` that are read, but for where the constructor keeps them."""
    inside = itertools.chain.from_iterable(
        ast.walk(x)
        for x in ast.iter_child_nodes(node)
        if not (isinstance(x, ast.FunctionDef) and x.name == "__init__")
    )
    return {
        x.attr
        for x in inside
        if isinstance(x, ast.Attribute)
        and isinstance(x.ctx, ast.Load)
        and ast.unparse(x.value) == "self"
    }


def test_the_implementation_looks_at_what_it_is_said_to_compute_and_at_nothing_else() -> None:
    """It fails where a release begins to compute an argument, or ceases to."""
    entry = catalog.find("fused_infer_attention")
    looked_at = reads(class_of(IMPLEMENTATIONS[entry.name])) & OPTIONAL.keys()
    assert looked_at == entry.computed(keeps_keys=True)
    encoder = method(class_of(IMPLEMENTATIONS[entry.name]), "_forward_encoder_attention")
    assert encoder is not None
    assert reads(encoder) & OPTIONAL.keys() == entry.computed(keeps_keys=False) == set()


def test_flash_attention_3_is_always_called_without_a_soft_cap() -> None:
    caps = [
        keyword.value
        for keyword in ast.walk(source_of("vllm_ascend.attention.fa3_v1"))
        if isinstance(keyword, ast.keyword) and keyword.arg == "softcap"
    ]
    assert [ast.literal_eval(cap) for cap in caps] == [0.0]


@pytest.mark.parametrize(
    "module", ["attention_v1", "attention_c8_mxfp", "context_parallel.attention_cp"]
)
def test_implementations_of_options_lack_what_the_catalog_says(module: str) -> None:
    name = f"vllm_ascend.attention.{module}"
    if not folder_of(name).with_suffix(".py").exists():
        pytest.skip(f"{name} is of another release")
    lacking = dict(catalog.find("fused_infer_attention").implementations_without)
    classes = [x for x in source_of(name).body if isinstance(x, ast.ClassDef)]
    found = [x for x in classes if x.name in lacking]
    assert found
    for implementation in found:
        refuses = "does not support sliding window" in ast.unparse(implementation)
        looked_at = reads(implementation) - ({"sliding_window"} if refuses else set())
        assert not looked_at & lacking[implementation.name]


@pytest.mark.parametrize(
    ("name", "value", "asked"),
    [
        ("logits_soft_cap", 30.0, True),
        ("logits_soft_cap", None, False),
        ("logits_soft_cap", 0.0, False),
        ("alibi_slopes", [0.5], True),
        ("alibi_slopes", None, False),
        ("use_alibi_sqrt", False, False),
        ("chunk_lookback", -1, False),
        ("chunk_lookback", 0, True),
        ("dual_chunk_attention_config", {"chunk_size": 8}, True),
        ("dual_chunk_attention_config", {}, False),
        ("per_layer_sliding_window", 8, True),
        ("scale", 0.125, False),
        ("layer_idx", 3, False),
        ("of_a_later_vllm", 0, True),
        ("of_a_later_vllm", None, False),
    ],
)
def test_an_argument_asks_for_something_by_its_value(name: str, value: Any, asked: bool) -> None:
    expected = {OTHER_NAMES.get(name, name)} if asked else set()
    assert optional_arguments({name: value}) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ({"model_type": "gemma2", "attn_logit_softcapping": 50.0}, {"logits_soft_cap"}),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": None}, set()),
        ({"model_type": "bloom"}, {"alibi_slopes"}),
        ({"model_type": "falcon", "alibi": True}, {"alibi_slopes"}),
        ({"model_type": "falcon", "alibi": False}, set()),
        ({"model_type": "mpt", "attn_config": {"alibi": True}}, {"alibi_slopes"}),
        ({"model_type": "mpt", "attn_config": "default"}, set()),
        ({"model_type": "baichuan", "hidden_size": 5120}, {"alibi_slopes"}),
        ({"model_type": "baichuan", "hidden_size": 4096}, set()),
        ({"dual_chunk_attention_config": {"chunk_size": 8}}, {"dual_chunk_attention_config"}),
        ({"rswa_window": 128}, {"rswa_window"}),
        ({"model_type": ["bloom"], "alibi": None}, set()),
    ],
)
def test_what_a_configuration_tells(text: dict[str, Any], told: set[str]) -> None:
    assert arguments_told_by(text) == told


def layer(role: Role = Role.TARGET, **changes: Any) -> LayerRequest:
    return LayerRequest(
        **{
            "name": "model.layers.0.self_attn.attn",
            "role": role,
            "kind": Kind.FULL_ATTENTION,
            "layer_class": "Attention",
            "dtype": "bfloat16",
            "head_size": 128,
            **changes,
        }
    )


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("argument", ["logits_soft_cap", "alibi_slopes", "of_a_later_vllm"])
def test_what_nothing_computes_is_refused_in_three_parts(argument: str, role: Role) -> None:
    with pytest.raises(SelectionError) as caught:
        selection.select_backend(
            layer(role, arguments=frozenset({argument, "sinks"})), SelectionOptions(), EVERYTHING
        )
    message = str(caught.value)
    assert f"computes {described([argument])}, and the tokens would be wrong" in message
    assert f"Possible: a {role} whose layers do not ask for it" in message
    assert f"Change: choose another {role}" in message


@pytest.mark.parametrize(
    ("kind", "keeps_keys", "served"),
    [
        (Kind.SLIDING_WINDOW, True, True),
        # vllm_ascend: npu_fusion_attention without a window or sinks.
        (Kind.FULL_ATTENTION, False, False),
        (Kind.MLA, True, False),
    ],
)
def test_a_window_is_served_where_the_kind_has_one(
    kind: Kind, keeps_keys: bool, served: bool
) -> None:
    size = 576 if kind is Kind.MLA else 128
    asked = layer(
        kind=kind, keeps_keys=keeps_keys, head_size=size, arguments=frozenset({"sliding_window"})
    )
    assert bool(selection.fitting_backends(asked, EVERYTHING)) is served


class AscendAttentionBackendImpl:
    """Stands for vllm-ascend's own."""


class AscendC8AttentionBackendImpl(AscendAttentionBackendImpl):
    """Stands for that of keys and values of 8 bits."""


@pytest.mark.parametrize("argument", ["sinks", "sliding_window"])
def test_an_implementation_of_an_option_is_asked_for_less(argument: str) -> None:
    entry: BackendEntry = catalog.find("fused_infer_attention")
    asked = layer(kind=Kind.SLIDING_WINDOW, arguments=frozenset({argument}))
    selection.require_computed(asked, entry)
    selection.require_computed(asked, entry, AscendAttentionBackendImpl)
    selection.require_computed(layer(), entry, AscendC8AttentionBackendImpl)
    with pytest.raises(SelectionError, match="with AscendC8AttentionBackendImpl computes") as found:
        selection.require_computed(asked, entry, AscendC8AttentionBackendImpl)
    assert described([argument]) in str(found.value)
