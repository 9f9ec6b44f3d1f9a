# SPDX-License-Identifier: Apache-2.0
"""The values that a config.json leaves out, by transformers' class of the model.

Published configs leave out what equals the default: heads, or which layers have a window. Asked in
a process of its own in which there is no torch: with it transformers imports Dynamo, which takes
three seconds of a processor, and none of it makes a configuration.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from mkv_ascend.checks.config_file import MOST_BYTES
from mkv_ascend.checks.speculators_format import FORMAT
from mkv_ascend.child_process import limit, run_module

__all__ = ["DefaultsError", "completed"]

HIDDEN = frozenset({"torch", "torchvision", "torch_npu"})
SECONDS = 300
"""Only a hang takes as long."""
MOST_MEMORY = 2 << 30
PROCESSOR_SECONDS = 30
"""Of the process: a published model's takes 160 MiB and two seconds."""
TOO_MUCH = 3
"""The process's exit status where memory, or what it would print, is over its bound."""
DERIVED = ("sliding_window",)
"""Values that the class may take away, such as the window with ``use_sliding_window: false``."""


class DefaultsError(ValueError):
    """A configuration that the class of its model does not take; the message says why."""


def completed(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The configs with the defaults of their classes; as they are for types without one.

    Raises:
        DefaultsError: transformers refuses a config, with its words.
    """
    if "transformers" in sys.modules:
        # It is imported, with torch or without: nothing is gained by another process.
        answer = [_filled(dict(config)) for config in configs]
    else:
        answer = _ask([dict(config) for config in configs])
    found = []
    for config, filled in zip(configs, answer, strict=True):
        if isinstance(filled, str):
            raise DefaultsError(filled)
        given = {name: value for name, value in config.items() if value is not None}
        if filled is None:
            found.append(given)
            continue
        # vLLM reads the format of the library speculators by a class that takes nothing away.
        derived = () if FORMAT in config else DERIVED
        taken_away = {name for name in derived if filled.get(name) is None}
        kept = {name: value for name, value in given.items() if name not in taken_away}
        whole = {**filled, **kept}
        found.append({name: value for name, value in whole.items() if value is not None})
    return found


def _ask(configs: Sequence[Mapping[str, Any]]) -> list[Any]:
    if importlib.util.find_spec("transformers") is None:
        raise ModuleNotFoundError("defaults come from transformers", name="transformers")
    # Models are directories, and nothing is looked for elsewhere.
    variables = {**os.environ, "HF_HUB_OFFLINE": "1"}
    try:
        done = run_module(__name__, json.dumps(configs), variables, SECONDS)
    except subprocess.TimeoutExpired:
        raise DefaultsError(f"transformers gave no answer within {SECONDS} s") from None
    if done.returncode in (TOO_MUCH, -signal.SIGXCPU):
        name, number = max(_numbers(configs), key=lambda found: abs(found[1]), default=("none", 0))
        raise DefaultsError(
            f"the model's class takes more than {MOST_MEMORY >> 30} GiB of memory, or "
            f"{PROCESSOR_SECONDS} s of a processor, for these numbers; the largest of them is "
            f"{name}, {number}: write what the published model has"
        )
    if done.returncode:
        words = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise DefaultsError(f"transformers could not be asked for defaults; it said: {words[0]}")
    answer: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Each whole number of a config with its name."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, str(key))
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item, name)
    elif type(value) is int:
        yield name, value


def _hide_torch() -> None:
    """Have transformers find no torch, so that it imports none."""
    find = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name.split(".")[0] in HIDDEN else find(name, package)

    importlib.util.find_spec = find_spec
    sys.meta_path.insert(0, _Absent())


class _Absent:
    """A finder that says of torch that it is not there."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        if name.split(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"{name} is hidden here", name=name)


def _filled(config: dict[str, Any]) -> dict[str, Any] | str | None:
    """All values; None without a class; the words with which the class refuses."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.utils import logging

    model_type = config.get("model_type")
    if model_type not in CONFIG_MAPPING:
        return None
    verbosity = logging.get_verbosity()
    # It warns of rotary embeddings, which no cache depends on.
    logging.set_verbosity_error()
    try:
        given = {name: _decoded(value) for name, value in config.items()}
        filled: dict[str, Any] = CONFIG_MAPPING[model_type].from_dict(given).to_dict()
    except MemoryError:
        raise
    except Exception as error:  # Whatever a class raises of values that it does not take.
        return f"{type(error).__name__}: {error}"
    finally:
        logging.set_verbosity(verbosity)
    return filled


def _decoded(value: Any) -> Any:
    """Floats that JSON has no word for; transformers writes ``{"__float__": "Infinity"}``."""
    if isinstance(value, Mapping):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {name: _decoded(item) for name, item in value.items()}
    return [_decoded(item) for item in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """What JSON has no word for is of no use here."""
    return str(value)


def main() -> None:
    """In that process: read configs from standard input, print them with all values."""
    limit(MOST_MEMORY, PROCESSOR_SECONDS)
    _hide_torch()
    configs = json.loads(sys.stdin.read())
    try:
        answer = json.dumps([_filled(config) for config in configs], default=_plain)
    except MemoryError:
        sys.exit(TOO_MUCH)
    if len(answer) > MOST_BYTES:
        sys.exit(TOO_MUCH)
    sys.stdout.write(answer + "\n")


if __name__ == "__main__":
    main()
