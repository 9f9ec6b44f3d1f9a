# SPDX-License-Identifier: Apache-2.0
"""Every check, in order: run by ``mkv-ascend check`` and by the front process of ``vllm serve``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from mkv_ascend.checks import (
    about_ascend_options,
    about_captures,
    about_command,
    about_compressed,
    about_draft,
    about_formats,
    about_kept_states,
    about_layers,
    about_one_kind,
    about_other_devices,
    about_runner,
    about_servers,
    about_top_tokens,
)
from mkv_ascend.checks.facts import DeviceFacts, ServeFacts
from mkv_ascend.checks.gathering import gather, with_plan
from mkv_ascend.checks.host_rules import HostRules
from mkv_ascend.checks.model_folders import with_model_folders
from mkv_ascend.checks.refusal import Refusal, RefusedError

__all__ = ["CHECKS", "judge", "refusals"]

Check = Callable[[ServeFacts], Iterator[Refusal]]

CHECKS: tuple[Check, ...] = (
    *about_command.CHECKS,
    *about_formats.CHECKS,
    *about_compressed.CHECKS,
    *about_draft.CHECKS,
    *about_runner.CHECKS,
    *about_top_tokens.CHECKS,
    *about_layers.CHECKS,
    *about_kept_states.CHECKS,
    *about_other_devices.CHECKS,
    *about_ascend_options.CHECKS,
    *about_one_kind.CHECKS,
    *about_captures.CHECKS,
    *about_servers.CHECKS,
)


def refusals(facts: ServeFacts) -> tuple[Refusal, ...]:
    """What every check says of these facts, each thing once."""
    return tuple(dict.fromkeys(refusal for check in CHECKS for refusal in check(facts)))


def judge(
    engine: Mapping[str, Any],
    device: DeviceFacts,
    rules: HostRules,
    runner: str = "v1",
    *,
    loads_weights: bool = False,
) -> tuple[ServeFacts, str]:
    """Facts and plan of a command that can be served, and why there is no plan where there is none.

    ``runner``: vLLM's model runner that would run it, "v1" or "v2". ``loads_weights``: whether an
    engine starts next.

    Raises:
        RefusedError: with every refusal that can be told.
    """
    facts = gather(with_model_folders(engine), device, rules)
    facts = replace(facts, runner=runner, loads_weights=loads_weights)
    found = refusals(facts)
    if found:
        # Planning would say the same in other words.
        raise RefusedError(found)
    facts, unplanned = with_plan(facts, rules)
    found = refusals(facts)
    if found:
        raise RefusedError(found)
    return facts, unplanned
