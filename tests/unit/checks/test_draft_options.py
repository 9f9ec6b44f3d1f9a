# SPDX-License-Identifier: Apache-2.0
"""Options of drafts that one host has, or serves in its own way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mkv_ascend.checks.about_shares import is_replicated
from mkv_ascend.checks.facts import DeviceFacts, ServeFacts
from mkv_ascend.checks.gathering import gather
from mkv_ascend.checks.host_rules import HostRules
from mkv_ascend.checks.judging import judge, refusals
from mkv_ascend.checks.model import has_windows
from mkv_ascend.checks.refusal import RefusedError
from mkv_ascend.checks.served import why_draft_is_eager
from tests.support.host_checks import DEVICE, EQUAL_PAGES, SHARED, refused


@pytest.mark.parametrize(
    ("speculative", "additional", "message"),
    [
        ({"draft_sample_method": "probabilistic"}, {}, "draft_sample_method"),
        ({"use_heterogeneous_vocab": True}, {}, "use_heterogeneous_vocab"),
        ({}, {"draft_window_size": 64}, '"window": TOKENS'),
        ({}, {"dynamic_spec_config": {"method": "dflash"}}, "tokens_per_batch_size"),
    ],
)
def test_options_of_drafts_of_one_host(
    speculative: dict[str, Any],
    additional: dict[str, Any],
    message: str,
    models: dict[str, str],
) -> None:
    """The engine says the same (tests/emulated/platform/test_platform.py)."""
    draft = {"model": models["Llama-3.1-8B"], "num_speculative_tokens": 3, **speculative}
    engine: dict[str, Any] = {
        "model": models["Llama-3.1-8B"],
        "speculative_config": draft,
        "additional_config": additional,
    }
    assert refused(engine, SHARED) == {}
    assert message in refused(engine, EQUAL_PAGES)["draft-option"]
    assert (
        refused({**engine, "prefill_context_parallel_size": 2}, EQUAL_PAGES).keys()
        & {"draft-option"}
        == set()
    )
    draft["method"], draft["model"] = "ngram", None
    assert "draft-option" not in refused(engine, EQUAL_PAGES)


def dspark_head(models: dict[str, str], folder: Path, architecture: str) -> str:
    """A folder whose config.json is that of such a head, but for numbers that no check reads."""
    config = json.loads((Path(models["Llama-3.1-8B"]) / "config.json").read_text())
    config |= {"architectures": [architecture], "model_type": "qwen3"}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    ("architecture", "method", "ours"),
    [
        ("Qwen3DSparkModel", None, True),
        ("DSparkDraftModel", None, True),
        ("Gemma4DSparkModel", None, False),
        ("K3DSparkModel", "dspark", False),
    ],
)
def test_heads_of_dspark_that_ours_draft_with(
    architecture: str, method: str | None, ours: bool, models: dict[str, str], tmp_path: Path
) -> None:
    """Those of Qwen3's kind, whatever the folder is called."""
    head = dspark_head(models, tmp_path, architecture)
    engine: dict[str, Any] = {
        "model": models["Llama-3.1-8B"],
        "speculative_config": {"model": head, "num_speculative_tokens": 3, "method": method},
        "prefill_context_parallel_size": 2,
    }
    facts = gather(engine, DEVICE, EQUAL_PAGES)
    assert facts.speculation is not None
    assert facts.speculation.method == "dspark"
    assert ("dflash" in refused(engine, EQUAL_PAGES)) == ours


@pytest.mark.parametrize(
    ("architecture", "ours"), [("DFlashDraftModel", True), ("DFlash2DraftModel", False)]
)
def test_drafts_of_mask_tokens_that_the_host_alone_proposes_with_are_left_to_it(
    architecture: str, ours: bool, models: dict[str, str], tmp_path: Path
) -> None:
    engine: dict[str, Any] = {
        "model": models["Llama-3.1-8B"],
        "speculative_config": {
            "model": dspark_head(models, tmp_path, architecture),
            "num_speculative_tokens": 3,
            "method": "dflash",
        },
        "prefill_context_parallel_size": 2,
    }
    assert ("dflash" in refused(engine, EQUAL_PAGES)) == ours


def test_dspark_is_refused_where_vllm_does_not_know_it(
    models: dict[str, str], tmp_path: Path
) -> None:
    head = dspark_head(models, tmp_path, "Qwen3DSparkModel")
    draft = {"model": head, "num_speculative_tokens": 3, "method": "dspark"}
    engine: dict[str, Any] = {"model": models["Llama-3.1-8B"], "speculative_config": draft}
    assert "does not know" in refused(engine, SHARED)["speculation-method"]
    assert "speculation-method" not in refused(engine, EQUAL_PAGES)


@pytest.mark.parametrize(("window", "is_refused"), [(1023, True), (1024, False)])
def test_a_window_as_long_as_each_request_changes_nothing(
    models: dict[str, str], window: int, is_refused: bool
) -> None:
    """Not even of layers of MLA, which can have none."""
    name = models["DeepSeek-V2-Lite"]
    engine: dict[str, Any] = {
        "model": name,
        "max_model_len": 1024,
        "speculative_config": {"model": name, "num_speculative_tokens": 3, "method": "draft_model"},
        "additional_config": {"mkv_ascend": {"drafting": {"window": window}}},
    }
    assert ("draft-window" in refused(engine, SHARED)) is is_refused


def test_each_rank_keeps_all_keys_of_a_head_of_dspark(
    models: dict[str, str], tmp_path: Path
) -> None:
    """Where proposals of ours draft with it; vllm-ascend's own on model runner V2 share keys."""
    head = dspark_head(models, tmp_path, "Qwen3DSparkModel")
    draft = {"model": head, "num_speculative_tokens": 3, "method": "dspark"}
    engine: dict[str, Any] = {
        "model": models["Llama-3.1-8B"],
        "speculative_config": draft,
        "tensor_parallel_size": 16,
        "decode_context_parallel_size": 2,
    }
    assert not {"dflash", "draft-shares"} & refused(engine, EQUAL_PAGES).keys()
    facts = gather(engine, DEVICE, EQUAL_PAGES)
    assert is_replicated(facts)
    assert not is_replicated(replace(facts, runner="v2"))
    for ranks, said in ((8, None), (9, "1152 tokens, and the operator takes 1024"), (16, "1024")):
        found = refused({**engine, "decode_context_parallel_size": ranks}, EQUAL_PAGES)
        assert (said or "") in found.get("draft-shares", "")
        assert ("draft-shares" in found) == (said is not None)
    assert "draft-shares" not in codes(
        replace(
            gather({**engine, "decode_context_parallel_size": 16}, DEVICE, EQUAL_PAGES), runner="v2"
        )
    )
    asked = {**engine, "additional_config": {"mkv_ascend": {"kv_cache": {"replicate_draft": True}}}}
    assert "draft-shares" not in refused(asked, EQUAL_PAGES)
    on_v2 = replace(gather(asked, DEVICE, EQUAL_PAGES), runner="v2")
    assert "vllm-ascend's own proposals" in codes(on_v2)["draft-shares"]


def test_windows_that_only_options_of_the_block_ask_for(
    models: dict[str, str], tmp_path: Path
) -> None:
    head = Path(dspark_head(models, tmp_path, "Qwen3DSparkModel"))
    config = json.loads((head / "config.json").read_text())
    draft = {"model": str(head), "num_speculative_tokens": 3, "method": "dspark"}
    engine = {"model": models["Llama-3.1-8B"], "speculative_config": draft}
    assert "dflash" not in refused(engine, EQUAL_PAGES)
    config["dflash_config"] = {"use_swa": True, "swa_window_size": 64}
    (head / "config.json").write_text(json.dumps(config))
    # Its layers see later mask tokens, and so they do where only some have windows.
    assert "dflash" not in refused(engine, EQUAL_PAGES)
    without = replace(EQUAL_PAGES, windows_in_blocks=False)
    assert "have sliding windows" in refused(engine, without)["dflash"]
    kinds = ["sliding_attention", *["full_attention"] * (config["num_hidden_layers"] - 1)]
    config |= {"is_causal": False, "layer_types": kinds}
    (head / "config.json").write_text(json.dumps(config))
    assert "beside layers that attend to all" in refused(engine, EQUAL_PAGES)["dflash"]
    on_v2 = replace(gather(engine, DEVICE, EQUAL_PAGES), runner="v2")
    assert "dflash" not in codes(on_v2)


@pytest.mark.parametrize(
    ("changes", "is_said"),
    [
        ({}, False),
        ({"sliding_window": 64}, False),
        ({"sliding_window": 64, "use_sliding_window": True}, True),
        ({"sliding_window": 64, "model_type": "llama"}, True),
        ({"dflash_config": {"use_swa": True, "swa_window_size": 64}}, True),
    ],
)
def test_windows_without_a_size(
    models: dict[str, str], tmp_path: Path, changes: dict[str, Any], is_said: bool
) -> None:
    head = Path(dspark_head(models, tmp_path, "Qwen3DSparkModel"))
    config = json.loads((head / "config.json").read_text())
    bare = {"model_type": "qwen3", "dflash_config": {"use_swa": True}, "sliding_window": None}
    (head / "config.json").write_text(json.dumps(config | bare | changes))
    draft = {"model": str(head), "num_speculative_tokens": 3, "method": "dspark"}
    found = refused({"model": models["Llama-3.1-8B"], "speculative_config": draft}, EQUAL_PAGES)
    assert ("does not say" in found.get("dflash", "")) is not is_said


def codes(facts: ServeFacts) -> dict[str, str]:
    """Code -> what is said of these facts."""
    return {found.code: str(found) for found in refusals(facts)}


def test_two_dtypes_of_a_drafts_cache(models: dict[str, str]) -> None:
    """vLLM 0.30.0 has an option of its own beside ``kv_cache.draft_dtype``."""
    draft = {"model": models["llama-draft"], "num_speculative_tokens": 3}
    ours = {"mkv_ascend": {"kv_cache": {"draft_dtype": "bfloat16"}}}
    engine = {
        "model": models["Llama-3.1-8B"],
        "speculative_config": {**draft, "kv_cache_dtype": "float16"},
        "additional_config": ours,
    }
    assert "kv_cache_dtype" in refused(engine, EQUAL_PAGES)["draft-dtype"]
    assert "draft-dtype" not in refused({**engine, "speculative_config": draft}, EQUAL_PAGES)


@pytest.mark.parametrize(("dtype", "planned"), [("auto", True), ("bfloat16", False)])
def test_no_plan_is_told_without_the_dtype_of_the_drafts_cache(
    dtype: str, planned: bool, models: dict[str, str]
) -> None:
    """An engine gives the draft a cache of it, whose layers may be others' size."""
    draft = {"model": models["llama-draft"], "num_speculative_tokens": 3, "kv_cache_dtype": dtype}
    engine = {"model": models["Llama-3.1-8B"], "speculative_config": draft}
    _, unplanned = judge(engine, WITH_FLASH, EQUAL_PAGES)
    assert ("kv_cache_dtype of --speculative-config" not in unplanned) == planned


@pytest.mark.parametrize("rules", [SHARED, EQUAL_PAGES])
def test_drafts_where_ranks_share_sequences_are_ours(
    rules: HostRules, models: dict[str, str]
) -> None:
    """What is for our own proposals says whether they draft; the engine tests show that they do."""
    engine: dict[str, Any] = {
        "model": models["Llama-3.1-8B"],
        "speculative_config": {"model": models["llama-draft"], "num_speculative_tokens": 3},
        "additional_config": {"mkv_ascend": {"drafting": {"give_up_below": 0.2}}},
        "decode_context_parallel_size": 2,
    }
    assert "give-up" not in refused(engine, rules)
    with_prompts = {**engine, "prefill_context_parallel_size": 2}
    assert "vllm-ascend's own proposal" in refused(with_prompts, rules)["give-up"]


@pytest.mark.parametrize("window", [None, 512])
@pytest.mark.parametrize("rules", [SHARED, EQUAL_PAGES])
def test_a_window_of_all_layers_needs_all_keys_on_each_rank(
    rules: HostRules, window: int | None, models: dict[str, str], tmp_path: Path
) -> None:
    """As Mistral's, whose configuration names no layers; then graphs hold the draft's passes."""
    config = json.loads((Path(models["llama-draft"]) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "sliding_window": window}))
    engine = {
        "model": models["Llama-3.1-8B"],
        "speculative_config": {"model": str(tmp_path), "num_speculative_tokens": 3},
        "tensor_parallel_size": 2,
        "decode_context_parallel_size": 2,
    }
    assert "draft-shares" not in refused(engine, rules)
    facts = gather(engine, DEVICE, rules)
    assert is_replicated(facts) is (window is not None)
    reason = why_draft_is_eager(facts)
    captured = window is not None or rules.captures_shares
    assert (reason is None) is captured
    with_prompts = {**engine, "prefill_context_parallel_size": 2}
    assert ("draft-shares" in refused(with_prompts, rules)) is (window is not None)
    assert not is_replicated(gather(with_prompts, DEVICE, rules))


IN_SHARES = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2, "enforce_eager": True}
WITH_FLASH = replace(DEVICE, modules=frozenset({"flash_attn_npu_v3"}))
"""A device where flash_attention_3 can be chosen."""


@pytest.mark.parametrize("rules", [SHARED, EQUAL_PAGES])
@pytest.mark.parametrize(
    ("pattern", "backend", "is_refused"),
    [
        (r"draft_model\.model\.layers\.3\..*", "flash_attention_3", True),
        (r"draft_model\.model\.layers\.3\..*", "fused_infer_attention", False),
        # A layer of the target, whose keys ranks share in any case.
        (r"model\.layers\.3\..*", "flash_attention_3", False),
    ],
    ids=["of the draft", "the draft's own", "of the target"],
)
def test_a_layer_of_a_replicated_draft_on_another_backend(
    pattern: str, backend: str, is_refused: bool, rules: HostRules, models: dict[str, str]
) -> None:
    """Told by the numbers of both models, though only vLLM can plan over shares."""
    ours = {"kv_cache": {"replicate_draft": True}, "attention": {"layers": {pattern: backend}}}
    engine: dict[str, Any] = {
        "model": models["Llama-3.1-8B"],
        "speculative_config": {"model": models["llama-draft"], "num_speculative_tokens": 3},
        "additional_config": {"mkv_ascend": ours},
        **IN_SHARES,
    }
    if not is_refused:
        _, unplanned = judge(engine, WITH_FLASH, rules)
        assert "only vLLM can read" in unplanned
        return
    with pytest.raises(RefusedError) as error:
        judge(engine, WITH_FLASH, rules)
    (found,) = error.value.refusals
    assert found.code == "draft-shares"
    assert f"attention.layers[{pattern!r}] asks for flash_attention_3" in found.asked
    assert found.change == f"leave attention.layers[{pattern!r}] out"


def test_a_default_of_all_layers_that_cannot_keep_all_keys(models: dict[str, str]) -> None:
    """VLLM_BATCH_INVARIANT leaves flash_attention_3 alone, which no rank can have by itself."""
    engine: dict[str, Any] = {
        "model": models["Llama-3.1-8B"],
        "speculative_config": {"model": models["llama-draft"], "num_speculative_tokens": 3},
        "additional_config": {"mkv_ascend": {"kv_cache": {"replicate_draft": True}}},
        **IN_SHARES,
    }
    assert refused(engine, SHARED, WITH_FLASH) == {}
    said = refused(engine, SHARED, replace(WITH_FLASH, batch_invariant=True))
    assert "VLLM_BATCH_INVARIANT asks for flash_attention_3" in said["draft-shares"]


@pytest.mark.parametrize("shares", [{}, IN_SHARES], ids=["one device", "shares"])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_windows_where_results_may_not_depend_on_the_batch(
    role: str, shares: dict[str, Any], models: dict[str, str], tmp_path: Path
) -> None:
    """Of a model whose layers numbers do not tell, too: flash_attention_3 serves the others."""
    config = json.loads((Path(models["llama-draft"]) / "config.json").read_text())
    types = ["full_attention", "sliding_attention"] * 2
    config |= {"sliding_window": 512, "layer_types": types, "model_type": "another"}
    config["architectures"] = ["LlamaForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = {"target": models["Llama-3.1-8B"], "draft": models["llama-draft"]}
    asked = {"enforce_eager": True, **shares}

    def said(device: DeviceFacts) -> dict[str, str]:
        draft = {"model": found["draft"], "num_speculative_tokens": 3}
        return refused(
            {"model": found["target"], "speculative_config": draft, **asked}, SHARED, device
        )

    invariant = replace(WITH_FLASH, batch_invariant=True)
    assert "backend" not in said(invariant)
    found[role] = str(tmp_path)
    assert "backend" not in said(WITH_FLASH)
    text = said(invariant)["backend"]
    assert f"every layer of the {role} with a window" in text
    assert "it needs batch_invariant_ops" in text
    assert text.endswith("leave VLLM_BATCH_INVARIANT out.")
    installed = invariant.modules | {"batch_invariant_ops"}
    assert "backend" not in said(replace(invariant, modules=installed))


@pytest.mark.parametrize(
    ("values", "windows"),
    [
        ({"sliding_window": 512}, True),
        ({"sliding_window": None}, False),
        ({"sliding_window": 512, "use_sliding_window": False}, False),
        ({"sliding_window": 512, "use_sliding_window": True}, True),
        ({"sliding_window": 512, "max_window_layers": 4, "num_hidden_layers": 4}, False),
        ({"sliding_window": 512, "max_window_layers": 3, "num_hidden_layers": 4}, True),
        ({"layer_types": ["full_attention", "sliding_attention"]}, True),
        ({"layer_types": ["full_attention"], "sliding_window": 512}, False),
    ],
)
def test_whether_layers_have_windows(values: dict[str, Any], windows: bool) -> None:
    """As transformers reads the files of Qwen2, which name a window that no layer has."""
    assert has_windows(values) is windows
