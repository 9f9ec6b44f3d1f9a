# SPDX-License-Identifier: Apache-2.0
"""Adapters (LoRA) of a target, which a server loads before a round and drops behind it."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from examples.demo.server import Server
from tests.support.adapters import RANK, make_adapter

ADAPTED = ("self_attn.q_proj", "self_attn.o_proj")
SECONDS = 120
OPTIONS = ("--enable-lora", "--max-lora-rank", str(RANK), "--max-loras")
"""Of ``vllm serve``; behind the last one stands how many adapters a batch may have."""
VARIABLES = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


@dataclass(frozen=True)
class Adapter:
    """``folder`` has it as PEFT saves it; in ``merged`` is the target with it."""

    folder: Path
    merged: Path


def make(target: Path, folder: Path, count: int) -> dict[str, Adapter]:
    """So many adapters of a model, in new folders of ``folder``: by their names in requests."""
    found = {}
    for number in range(1, count + 1):
        name = f"adapter-{number}"
        found[name] = Adapter(*make_adapter(target, folder / name, ADAPTED, seed=number))
    return found


@contextlib.contextmanager
def loaded(server: Server, adapters: Mapping[str, Adapter]) -> Iterator[None]:
    """The server serves them inside, and no longer behind it.

    Raises:
        OSError: the server does not answer, or refuses one.
    """
    for name, adapter in adapters.items():
        _post(server, "load", {"lora_name": name, "lora_path": str(adapter.folder)})
    yield
    for name in adapters:
        _post(server, "unload", {"lora_name": name})


def _post(server: Server, what: str, body: Mapping[str, str]) -> None:
    request = urllib.request.Request(
        f"{server.address}/v1/{what}_lora_adapter",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=SECONDS) as answer:
        answer.read()
