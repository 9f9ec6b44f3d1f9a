# SPDX-License-Identifier: Apache-2.0
"""Reading ``--speculative-config``: method, number of tokens and draft as vLLM comes to them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkv_ascend.checks.config_file import ConfigFileError
from mkv_ascend.checks.facts import SERVED_DSPARK, SpeculationFacts
from mkv_ascend.checks.model import ModelFacts, read_model_facts
from mkv_ascend.checks.refusal import Refusal, RefusedError, refused
from mkv_ascend.layout.kind import Role

__all__ = ["METHODS", "read_speculation", "with_short_options"]

OPTION = "--speculative-config"

METHODS = (
    *("draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark"),
    *("ngram", "ngram_gpu", "suffix", "medusa", "extract_hidden_states"),
)
"""Methods that a host has a proposer for; ``dspark`` only newer ones (``about_draft_options``)."""

OWN_WEIGHTS = frozenset({"draft_model", "eagle", "eagle3", "dflash", "medusa"})
"""Methods whose draft has a folder of its own."""

IN_NAMES = (
    *(("eagle-", "eagle"), ("eagle3", "eagle3")),
    *(("dflash", "dflash"), ("dspark", "dspark")),
)
"""Part of a draft's name -> the method that vLLM takes it for."""

NAMED_DSPARK = SERVED_DSPARK | {"Gemma4DSparkModel"}
"""Classes that vLLM takes for drafts of method dspark whatever their folder is called."""

SHORT = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}


def with_short_options(engine: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options with what ``--spec-method`` and the like add to ``--speculative-config``.

    Raises:
        RefusedError: that configuration is no mapping, or names what they name.
    """
    found = engine.get("speculative_config")
    if found is not None and not isinstance(found, Mapping):
        raise refused(
            "speculation-form",
            f"{OPTION} is {found!r}",
            "a JSON object",
            'write {"model": DIRECTORY, "num_speculative_tokens": 3} for instance',
        )
    names = {option[2:].replace("-", "_"): option for option in SHORT}
    values = dict(found or {})
    for name, option in names.items():
        value, key = engine.get(name), SHORT[option]
        if value is None:
            continue
        if key in values:
            raise refused(
                "speculation-twice",
                f"{option} and {key} of {OPTION} are both given",
                "one of the two",
                f"leave {option} out",
            )
        values[key] = value
    if not values and found is None:
        return engine
    others = {name: value for name, value in engine.items() if name not in names}
    return {**others, "speculative_config": values}


def read_speculation(
    engine: Mapping[str, Any], target: ModelFacts
) -> tuple[SpeculationFacts | None, ModelFacts | None]:
    """Method and tokens, and the draft; None where there is none. Raises RefusedError.

    ``engine``: with what short options add (``with_short_options``).
    """
    given = engine.get("speculative_config")
    if given is None:
        return None, None
    _check_names(given)
    model = given.get("model")
    draft = _read_draft(str(model)) if model is not None and _is_model(given) else None
    method = _method(given, draft, target)
    if method not in METHODS:
        raise refused(
            "speculation-method",
            f"method of {OPTION} is {method!r}",
            ", ".join(METHODS),
            "write one of these, or leave method out beside a model",
        )
    if draft is None and method in OWN_WEIGHTS:
        raise refused(
            "speculation-model",
            f"{OPTION} asks for method {method} and names no model",
            'a draft: {"model": DIRECTORY, ...}, or a method without one (mtp, ngram, suffix)',
            "add model",
        )
    if method == "mtp" and draft is None:
        draft = ModelFacts(
            Role.DRAFT, target.name, target.values, target.text, formats=target.formats
        )
    tokens = given.get("num_speculative_tokens")
    modules = draft.mtp_layers if draft is not None and method == "mtp" else 0
    if tokens is None and draft is not None:
        tokens = draft.number("n_predict") or modules or None
    if type(tokens) is not int or tokens < 1:
        raise refused(
            "speculation-tokens",
            f"num_speculative_tokens of {OPTION} is {tokens!r}",
            "a whole number from 1 to 15",
            "write how many tokens a proposal has, 3 for instance",
        )
    if modules and tokens > modules and tokens % modules:
        # As in ``vllm.config.speculative.SpeculativeConfig``, whichever modules run.
        raise refused(
            "speculation-tokens",
            f"num_speculative_tokens of {OPTION} is {tokens}, and the multi-token predictor of "
            f"{target.name} has {modules} modules",
            f"up to {modules}, or a multiple of it",
            f"write {tokens - tokens % modules}",
        )
    return SpeculationFacts(method, tokens, given), draft


def _check_names(given: Mapping[str, Any]) -> None:
    problems = list(_wrong_names(given))
    if problems:
        raise RefusedError(problems)


def _wrong_names(given: Mapping[str, Any]) -> Iterator[Refusal]:
    if "tensor_parallel_size" in given:
        yield Refusal(
            "speculation-ranks",
            f"{OPTION} has tensor_parallel_size",
            "a draft on all ranks of its target",
            "leave it out (heads: draft_tensor_parallel_size)",
        )
    for name in ("method", "model", "quantization", "attention_backend"):
        value = given.get(name)
        if value is not None and not isinstance(value, str):
            yield Refusal(
                "speculation-form",
                f"{name} of {OPTION} is {value!r}",
                "a word",
                f"write {name} in quotation marks",
            )


def _is_model(given: Mapping[str, Any]) -> bool:
    return given.get("method") not in (
        "ngram",
        "ngram_gpu",
        "suffix",
        "extract_hidden_states",
    ) and (given.get("model") not in ("ngram", "[ngram]"))


def _has(folder: Path, name: str) -> bool:
    return os.path.isfile(folder / name)


def _read_draft(name: str) -> ModelFacts:
    folder = Path(name)
    if _has(folder, "adapter_config.json") and not _has(folder, "config.json"):
        raise refused(
            "draft-adapter",
            f"the draft {name} is a LoRA adapter, not a model",
            "a draft with its own weights; adapters are served on the target (--lora-modules)",
            "merge the adapter into its base model, and name the merged folder",
        )
    try:
        return read_model_facts(Role.DRAFT, name)
    except ConfigFileError as error:
        raise refused(
            "draft-config",
            f"the draft's config.json: {error}",
            "a directory with the config.json of a published model",
            f"correct the file, or model of {OPTION}",
        ) from None


def _method(given: Mapping[str, Any], draft: ModelFacts | None, target: ModelFacts) -> str:
    """As ``SpeculativeConfig.__post_init__`` of vLLM 0.23.0 finds it, as patched (below)."""
    asked = given.get("method")
    method = str(asked) if asked is not None else "draft_model"
    if asked is None and draft is None:
        method = "ngram" if "ngram" in str(given.get("model")) else "draft_model"
    if method.endswith("_mtp"):
        return "mtp"
    if draft is None or method in ("eagle", "eagle3", "dflash", "dspark", "mtp"):
        return method
    name, found = draft.name.lower(), draft.model_type
    for part, meant in IN_NAMES:
        if part in name:
            return meant
    of_qwen3 = "DSparkDraftModel" in draft.architectures and found == "qwen3"
    if of_qwen3 or not NAMED_DSPARK.isdisjoint(draft.architectures):
        return "dspark"
    if found in ("medusa", "mlp_speculator"):
        return found
    # Another model without such layers keeps its architecture (patches/draft_architecture.py).
    has_head = draft.has_predictor if draft.name == target.name else draft.mtp_layers > 0
    is_predictor = found.endswith("_mtp") or (asked is None and has_head)
    return "mtp" if is_predictor else method
