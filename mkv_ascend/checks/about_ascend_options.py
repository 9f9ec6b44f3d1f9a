# SPDX-License-Identifier: Apache-2.0
"""Names in ``--additional-config`` that the host does not know, where it refuses them.

vllm-ascend 0.23.0 passes over them; 0.30.0rc2 names none in its refusal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from mkv_ascend import host_versions
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS"]

OURS = "mkv_ascend"
SHARING = "vllm_omni"
"""A package with names of its own there: beside it vllm-ascend passes over unknown ones."""


def unknown_names(facts: ServeFacts) -> Iterator[Refusal]:
    """Such as those of an older vllm-ascend."""
    given, rules = facts.engine.get("additional_config"), facts.rules
    if rules is None or not rules.ascend_options or not isinstance(given, Mapping):
        return
    unknown = [name for name in given if name not in rules.ascend_options and name != OURS]
    if unknown and find_spec(SHARING) is None:
        yield Refusal(
            "additional-config",
            f"--additional-config has {', '.join(map(str, unknown))}, which "
            f"{host_versions.vllm_ascend()} does not know",
            "names of its AscendConfig, and mkv_ascend",
            "correct the name, or leave it out",
        )


CHECKS = (unknown_names,)
