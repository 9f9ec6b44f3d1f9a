# SPDX-License-Identifier: Apache-2.0
"""Names and values of ``--additional-config``: ours, and those that a host does not know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from mkv_ascend import host_versions
from mkv_ascend.attention.options import NAMESPACE
from mkv_ascend.config import MkvConfig
from mkv_ascend.rules.host import HostRules
from mkv_ascend.rules.refusal import Refusal

OURS = frozenset(field.name for field in fields(MkvConfig))
SHARING = "vllm_omni"
"""A package with names of its own there: beside it vllm-ascend passes over unknown ones."""


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
    outside = sorted(name for name in given if name in OURS and name not in host.ascend_options)
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
