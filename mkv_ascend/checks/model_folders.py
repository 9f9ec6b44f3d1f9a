# SPDX-License-Identifier: Apache-2.0
"""Models that are named by their repository, as users write them: where the hub's cache has them.

Nothing is fetched: vLLM does that, and keeps it in the same cache.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkv_ascend.checks.config_file import ConfigFileError, read_config_file
from mkv_ascend.checks.speculators_format import command_of

__all__ = ["names_without_folder", "read_by_vllm_alone", "with_model_folders"]

OF_MISTRAL = "params.json"
"""The configuration of models in Mistral's own format, of which vLLM makes one."""

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def with_model_folders(engine: Mapping[str, Any]) -> dict[str, Any]:
    """The options with each model's folder in the cache in place of its repository's name.

    A draft in speculators' format as the model gives its target, and itself as the draft.

    Args:
        engine: options of a command, by the names of vLLM's ``EngineArgs``. What is a folder, or
            is not in the cache, stays as it is.
    """
    found = dict(engine)
    for key in ("model", "spec_model"):
        if isinstance(found.get(key), str):
            revision = found.get("revision") if key == "model" else None
            found[key] = _folder(found[key], revision)
    _take_target_of_draft(found)
    speculation = found.get("speculative_config")
    if isinstance(speculation, Mapping) and isinstance(speculation.get("model"), str):
        folder = _folder(speculation["model"], speculation.get("revision"))
        found["speculative_config"] = {**speculation, "model": folder}
    return found


def _take_target_of_draft(engine: dict[str, Any]) -> None:
    """Where the model is a draft that names its target (speculators' format), serve that one."""
    draft = str(engine.get("model"))
    try:
        values = read_config_file(Path(draft))
    except ConfigFileError:
        return
    asked = command_of(values, draft, engine.get("speculative_config"))
    if asked is not None:
        target, engine["speculative_config"] = asked
        engine["model"] = _folder(target, None)


def names_without_folder(engine: Mapping[str, Any]) -> list[str]:
    """Models whose configuration is not here: the target if it is no folder, such as an address in
    a store, and a draft that is named by a repository which does not lie in the cache."""
    known = with_model_folders(engine)
    target = str(known.get("model"))
    speculation = known.get("speculative_config")
    drafts = [speculation.get("model")] if isinstance(speculation, Mapping) else []
    drafted = [name for name in (known.get("spec_model"), *drafts) if _is_repository(name)]
    return [*([] if os.path.isdir(target) else [target]), *map(str, drafted)]


def read_by_vllm_alone(engine: Mapping[str, Any]) -> list[str]:
    """Models whose configuration is not the config.json of their folder.

    It is Mistral's params.json where that is alone, or the target's is elsewhere
    (``--hf-config-path``).
    """
    known = with_model_folders(engine)
    speculation = known.get("speculative_config")
    draft = speculation.get("model") if isinstance(speculation, Mapping) else None
    models = [name for name in (known.get("model"), known.get("spec_model"), draft) if name]
    found = [str(name) for name in models if _is_mistrals(Path(str(name)))]
    if engine.get("hf_config_path") and str(known.get("model")) not in found:
        found.insert(0, str(known.get("model")))
    return found


def _is_mistrals(folder: Path) -> bool:
    return os.path.isfile(folder / OF_MISTRAL) and not os.path.exists(folder / "config.json")


def _is_repository(name: Any) -> bool:
    return isinstance(name, str) and bool(REPOSITORY.fullmatch(name)) and not os.path.exists(name)


def _folder(name: str, revision: Any) -> str:
    if not _is_repository(name):
        return name
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return name
    try:
        file = try_to_load_from_cache(
            name, "config.json", revision=revision if isinstance(revision, str) else None
        )
    except ValueError:
        # No name that a repository can have.
        return name
    return str(Path(file).parent) if isinstance(file, str) else name
