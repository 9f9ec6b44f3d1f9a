# SPDX-License-Identifier: Apache-2.0
"""Options of drafts that come to nothing, and names and values of ``--additional-config``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from importlib.util import find_spec
from operator import attrgetter
from typing import Any

from mkv_ascend import host_versions
from mkv_ascend.attention.options import NAMESPACE, WINDOWED_KINDS, window_of_layer
from mkv_ascend.config import MkvConfig
from mkv_ascend.rules.facts import Facts, HostRules
from mkv_ascend.rules.refusal import Refusal, Rule


def _of_ours(asked: Callable[[Facts], object]) -> Callable[[Facts], object]:
    """Where a proposal of ours drafts, on a host with options that its own proposals have."""
    return lambda facts: (
        facts.draft is not None
        and facts.has_draft_cache
        and facts.host.has_draft_options
        and not facts.host_drafts
        and asked(facts)
    )


def _has_dynamic(facts: Facts) -> bool:
    dynamic = facts.ascend.get("dynamic_spec_config")
    return isinstance(dynamic, Mapping) and bool(dynamic.get("method"))


def _is_probabilistic(facts: Facts) -> bool:
    return bool(facts.option_of_draft("draft_sample_method") == "probabilistic")


OWN_NAMES = frozenset(field.name for field in fields(MkvConfig))
SHARING = "vllm_omni"
"""A package with names of its own there: beside it vllm-ascend passes over unknown ones."""

OF_THE_HOST = (
    Rule(
        "draft-option",
        _of_ours(lambda facts: facts.runner == "v1" and _is_probabilistic(facts)),
        "draft_sample_method is probabilistic, and on model runner V1 a draft's tokens are its "
        "most likely ones",
        "greedy; on model runner V2 (VLLM_USE_V2_MODEL_RUNNER=1) both",
        "leave draft_sample_method out",
    ),
    Rule(
        "draft-option",
        _of_ours(lambda facts: facts.option_of_draft("use_heterogeneous_vocab")),
        "use_heterogeneous_vocab is set, and draft tokens are handed over as they are",
        "a draft with the target's vocabulary",
        "leave use_heterogeneous_vocab out, and choose such a draft",
    ),
    Rule(
        "draft-option",
        _of_ours(lambda facts: facts.ascend.get("draft_window_size") is not None),
        "draft_window_size of --additional-config is set, and each layer of a draft has the "
        "window of its own configuration",
        "drafting.window of mkv_ascend, for drafts whose layers attend to all tokens",
        'write {{"mkv_ascend": {{"drafting": {{"window": TOKENS}}}}}} in its place',
    ),
    Rule(
        "draft-option",
        _of_ours(_has_dynamic),
        "dynamic_spec_config of --additional-config is set, and proposals of mkv_ascend do not "
        "say how sure the draft is of its tokens: every one of them would be verified",
        "as many draft tokens for each request, by the number of requests",
        "leave dynamic_spec_config out, or give num_speculative_tokens_per_batch_size",
    ),
    # Model runner V2 refuses it behind the draft's loading, and V1 passes over the option.
    Rule(
        "draft-option",
        _of_ours(
            lambda facts: (
                facts.runner == "v2"
                and facts.option_of_draft("use_local_argmax_reduction")
                and _is_probabilistic(facts)
            )
        ),
        "use_local_argmax_reduction and a draft_sample_method that is probabilistic are set, "
        "and a token is drawn from logits, which vLLM does not gather then",
        "one of the two",
        "leave use_local_argmax_reduction out",
    ),
    # Model runner V1 calls them in each step without drafts; vLLM says so in the worker.
    Rule(
        "logits-processors",
        lambda facts: facts.logits_processors and facts.runner == "v1" and facts.method,
        "--logits-processors is given beside --speculative-config, and vLLM calls none of them "
        "for tokens that it verifies",
        "one of the two; beside drafts what requests ask for themselves (bad_words, "
        "allowed_token_ids, penalties, structured_outputs)",
        "leave --logits-processors out, or --speculative-config",
    ),
)


def _why_no_dtype(facts: Facts) -> str | None:
    theirs = facts.option_of_draft("kv_cache_dtype")
    if theirs in (None, "auto", facts.options.kv_cache.draft_dtype):
        return None
    return f"kv_cache_dtype of --speculative-config is {theirs}"


def _why_no_window(facts: Facts) -> str | None:
    speculation, draft, asked = facts.speculation, facts.draft, facts.options.drafting.window
    assert speculation is not None
    if window_of_layer(None, asked, facts.max_model_len or None) is None:
        return None
    if speculation.drafts_blocks:
        return (
            f"layers of method {speculation.method} have the windows of their own config.json alone"
        )
    if draft is not None and (draft.kind not in WINDOWED_KINDS or draft.is_compressed):
        return f"layers of the draft {draft.name} are of MLA, whose operators have no window"
    if draft is not None and draft.recurrent is not None and speculation.method != "mtp":
        # Its states hold all tokens whatever its few attention layers see.
        return f"the draft {draft.name} has recurrent layers, which keep no keys"
    if facts.context_parallel > 1:
        return "context parallelism is on, where blocks behind a window are kept"
    if facts.one_kind_of_cache:
        return "--disable-hybrid-kv-cache-manager keeps the blocks behind a window"
    return None


def _why_no_end(facts: Facts) -> str | None:
    if facts.host_drafts:
        return "vllm-ascend's own proposal drafts for this pair"
    if facts.data_parallel > 1:
        return "--data-parallel-size is more than 1: ranks draft together, and each judges alone"
    if facts.pipeline_parallel > 1:
        return "--pipeline-parallel-size is more than 1"
    return None


OURS: tuple[tuple[str, str, Callable[[Facts], str | None], str], ...] = (
    (
        "draft-dtype",
        "kv_cache.draft_dtype",
        _why_no_dtype,
        "the option beside a draft model or a head, with one dtype",
    ),
    (
        "draft-window",
        "drafting.window",
        _why_no_window,
        "a window for drafts of dense layers: draft models, eagle and eagle3 heads, mtp",
    ),
    (
        "give-up",
        "drafting.give_up_below",
        _why_no_end,
        "an end of drafting for draft models and heads with a KV cache, by one engine without "
        "pipeline stages",
    ),
)
"""Code, our option of drafts, why nothing would come of it beside a draft, what is possible."""


def options_of_ours(facts: Facts) -> Iterator[Refusal]:
    """Options of ours where no draft has a cache, or something else keeps them from an effect."""
    for code, option, why_not, possible in OURS:
        asked = attrgetter(option)(facts.options)
        if asked is None:
            continue
        reason = why_not(facts) if facts.has_draft_cache else "there is no draft with a KV cache"
        if reason is not None:
            what = f"{option} is {asked}, and {reason}"
            yield Refusal(code, what, possible, f"leave {option} out")


CHECKS = (*OF_THE_HOST, options_of_ours)


def of_problems(problems: Iterable[str]) -> Iterator[Refusal]:
    """Problems of our options: what each is; what is allowed."""
    for problem in problems:
        asked, _, allowed = problem.partition("; ")
        yield Refusal(
            "options",
            f"--additional-config: {asked}",
            allowed.removeprefix("allowed: ") or "docs/configuration.md lists the options",
            "correct it, or leave it out",
        )


def unknown_names(given: Mapping[str, Any], host: HostRules) -> Iterator[Refusal]:
    """Our options outside of our key, and what vllm-ascend refuses without naming it."""
    outside = sorted((OWN_NAMES & given.keys()) - host.ascend_options)
    if outside:
        yield Refusal(
            "additional-config",
            f"--additional-config has {', '.join(outside)} beside {NAMESPACE}, where nothing "
            "reads it",
            f"options of mkv_ascend under the key {NAMESPACE}",
            f'write {{"{NAMESPACE}": {{"{outside[0]}": ...}}}}',
        )
    known = host.ascend_options | {NAMESPACE, *outside}
    unknown = [name for name in given if name not in known] if host.ascend_options else []
    if unknown and find_spec(SHARING) is None:
        yield Refusal(
            "additional-config",
            f"--additional-config has {', '.join(map(str, unknown))}, which "
            f"{host_versions.vllm_ascend()} does not know",
            "names of its AscendConfig, and mkv_ascend",
            "correct the name, or leave it out",
        )
