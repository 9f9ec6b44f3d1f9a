# SPDX-License-Identifier: Apache-2.0
"""Where the tiny models are kept: files of this repository, unpacked into a cache when asked for.

A file holds one checkpoint: its tensors, and in the header its config.json, generation_config.json
and the record of its training. Trained weights are rounded to bfloat16, which takes half the bytes
of float32; what is unpacked has float32 again, with the same values. A file leaves out the tensors
that a checkpoint shares with another one (heads of method mtp), and random ones that a seed gives.
``SHA256SUMS`` has the digest of each file (``sha256sum -c`` reads it), so that every machine judges
with the same bytes. Models that only ``make matrix`` uses are kept in the cache, where it trains
them: all of them would take 90 MB.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mkv_ascend import envs
from tests.support.tiny_models.recipe import (
    MAX_POSITIONS,
    AssistantRecipe,
    FittedRecipe,
    HeadRecipe,
)
from tests.support.tiny_models.recipes import FOR_THE_MATRIX, find_recipe
from tests.support.tiny_models.tokenizer import build_tokenizer

if TYPE_CHECKING:
    import torch

CHECKPOINTS = Path(__file__).resolve().parents[2] / "data" / "tiny_models" / "checkpoints"
DIGESTS = "SHA256SUMS"
SUFFIX = ".safetensors.z"

DESCRIPTION_FILE = "mkv_ascend.json"
"""In each checkpoint: recipe, seed, losses, sensitivity. Written last."""

WEIGHTS_FILE = "model.safetensors"
CONFIGURATIONS = ("config.json", "generation_config.json")

CHAT_TEMPLATE_FILE = "chat_template.jinja"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message['role'] }}: {{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
"""So that chats can be asked for; no model was trained on any."""

TRAIN = "python -m tests.support.tiny_models --train"
FORMAT = 3
"""Changes where the same file is unpacked to something else."""


class WrongBytesError(RuntimeError):
    """A checkpoint's file is missing, or not the one that tests were written with."""


def default_directory() -> Path:
    """``tiny_models`` in the folder of ``MKV_ASCEND_CACHE``."""
    return envs.CACHE.get() / "tiny_models"


@functools.cache
def digests() -> dict[str, str]:
    """Name of a tiny model of the repository -> SHA-256 of its file."""
    lines = (CHECKPOINTS / DIGESTS).read_text(encoding="utf-8").splitlines()
    pairs = (line.split() for line in lines)
    return {file.removesuffix(SUFFIX): digest for digest, file in pairs}


def file_of(name: str) -> Path:
    """Where the model called ``name`` is kept, whether it is there or not."""
    folder = default_directory() / "trained" if name in FOR_THE_MATRIX else CHECKPOINTS
    return folder / f"{name}{SUFFIX}"


def is_kept(name: str) -> bool:
    """Whether the model called ``name`` need not be trained first."""
    return file_of(name).is_file()


def source_of(name: str) -> str | None:
    """The tiny model of which the one called ``name`` holds all tensors, if there is one."""
    recipe = find_recipe(name)
    if not isinstance(recipe, HeadRecipe) or isinstance(recipe, AssistantRecipe):
        return None
    return recipe.source if recipe.method == "mtp" else None


def tensors_beside(name: str) -> dict[str, torch.Tensor]:
    """Tensors of the checkpoint called ``name`` that its own file need not hold."""
    recipe, source = find_recipe(name), source_of(name)
    if isinstance(recipe, FittedRecipe):
        from tests.support.tiny_models import deepseek_v4

        return deepseek_v4.make_weights(deepseek_v4.CONFIGURATION, recipe.seed)
    return read_packed(source)[0] if source else {}


def content_digest(name: str) -> str:
    """12 hexadecimal digits that change with the bytes of the checkpoint called ``name``.

    Raises:
        WrongBytesError: it was not trained yet.
    """
    names = [name, *filter(None, [source_of(name)])]
    digest = hashlib.sha256(str(FORMAT).encode())
    for each in names:
        if not is_kept(each):
            raise WrongBytesError(f"{each} has no file yet: {TRAIN} {each}")
        digest.update(_digest_of(each).encode())
    return digest.hexdigest()[:12]


def _digest_of(name: str) -> str:
    known = digests().get(name)
    return known or hashlib.sha256(file_of(name).read_bytes()).hexdigest()


def checkpoint_path(name: str, directory: Path | None = None) -> Path:
    """Folder of the unpacked checkpoint, whether it is there or not."""
    return (directory or default_directory()) / f"{name}-{content_digest(name)}"


def is_complete(path: Path) -> bool:
    """Whether ``path`` holds a whole checkpoint."""
    return (path / DESCRIPTION_FILE).is_file()


def read_description(path: Path) -> dict[str, Any]:
    """What was recorded when the checkpoint in ``path`` was made."""
    description: dict[str, Any] = json.loads((path / DESCRIPTION_FILE).read_text())
    return description


def write_description(path: Path, description: dict[str, Any]) -> None:
    """Write what marks the checkpoint in ``path`` as complete."""
    (path / DESCRIPTION_FILE).write_text(json.dumps(description, indent=2) + "\n")


def configurations() -> Iterator[dict[str, Any]]:
    """The content of the config.json of each checkpoint of the repository."""
    for file in sorted(CHECKPOINTS.glob(f"*{SUFFIX}")):
        yield json.loads(_header_of(_inflated(file.read_bytes())).get("config.json", "{}"))


def unpack(name: str, path: Path) -> None:
    """Write the checkpoint of the repository called ``name`` into the folder ``path``.

    Raises:
        WrongBytesError: its file has another digest than ``SHA256SUMS`` says.
    """
    from safetensors.torch import save_file

    tensors, header = read_packed(name)
    tensors = tensors_beside(name) | tensors
    for file in header:
        if file in CONFIGURATIONS or file.endswith(".py"):
            (path / file).write_text(header[file], encoding="utf-8")
    save_file(tensors, path / WEIGHTS_FILE, metadata={"format": "pt"})
    build_tokenizer(MAX_POSITIONS).save_pretrained(path)
    (path / CHAT_TEMPLATE_FILE).write_text(CHAT_TEMPLATE, encoding="utf-8")
    (path / DESCRIPTION_FILE).write_text(header[DESCRIPTION_FILE], encoding="utf-8")


def read_packed(name: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of a file of the repository as they were before it was packed, and its header.

    Raises:
        WrongBytesError: see ``unpack``.
    """
    import torch
    from safetensors.torch import load

    file = file_of(name)
    content = file.read_bytes()
    if name in digests() and hashlib.sha256(content).hexdigest() != digests()[name]:
        raise WrongBytesError(
            f"{file.name} is not the file of {DIGESTS}: get it again (git checkout), or, if it was "
            f"trained anew, let tests judge with it ({TRAIN} {file.stem})"
        )
    content = _inflated(content)
    header = _header_of(content)
    tensors = load(content)
    for rounded in json.loads(header["rounded"]):
        tensors[rounded] = tensors[rounded].to(torch.float32)
    return tensors, header


def pack(name: str, path: Path) -> None:
    """Write the checkpoint in the folder ``path`` into the repository, and its digest."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(path / WEIGHTS_FILE)
    shared = tensors_beside(name)
    tensors = {
        key: value
        for key, value in tensors.items()
        if key not in shared or not torch.equal(value, shared[key])
    }
    files = [path / file for file in (*CONFIGURATIONS, DESCRIPTION_FILE)]
    # Some checkpoints bring code for their configuration along.
    files += sorted(path.glob("*.py"))
    header = {file.name: file.read_text(encoding="utf-8") for file in files if file.is_file()}
    write_packed(name, tensors, header)


def write_packed(
    name: str, tensors: Mapping[str, torch.Tensor], header: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Write a file of the repository, and its digest."""
    import torch
    from safetensors.torch import save

    rounded = sorted(key for key, value in tensors.items() if survives_rounding(value))
    halves = {key: tensors[key].to(torch.bfloat16) for key in rounded}
    header = {"format": "pt", "rounded": json.dumps(rounded), **header}
    file = file_of(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    with locked(default_directory() / DIGESTS):
        file.write_bytes(_deflated(save({**tensors, **halves}, metadata=header)))
        if file.parent == CHECKPOINTS:
            _write_digests()


def _deflated(content: bytes) -> bytes:
    """A file in the format safetensors, in two thirds of its bytes.

    Of each two bytes of its data the first ones come first: they are the fractions of bfloat16,
    which hardly repeat, and the others its exponents.
    """
    start = _start_of_data(content)
    return zlib.compress(content[:start] + content[start::2] + content[start + 1 :: 2], level=9)


def _inflated(content: bytes) -> bytes:
    """The opposite of ``_deflated``."""
    content = zlib.decompress(content)
    start = _start_of_data(content)
    result = bytearray(content)
    middle = start + (len(content) - start + 1) // 2
    result[start::2], result[start + 1 :: 2] = content[start:middle], content[middle:]
    return bytes(result)


def _start_of_data(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")


def _header_of(content: bytes) -> dict[str, str]:
    """The metadata of a file in the format safetensors."""
    header: dict[str, str] = json.loads(content[8 : _start_of_data(content)])["__metadata__"]
    return header


def survives_rounding(tensor: torch.Tensor) -> bool:
    """Whether a tensor of float32 has the same values in bfloat16."""
    import torch

    return tensor.dtype == torch.float32 and torch.equal(tensor.bfloat16().float(), tensor)


def _write_digests() -> None:
    files = sorted(CHECKPOINTS.glob(f"*{SUFFIX}"))
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (CHECKPOINTS / DIGESTS).write_text("".join(lines), encoding="utf-8")
    digests.cache_clear()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of the checkpoint ``path``; a second process waits here until it is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as file:
        # Freed by the kernel with the file, so a process that dies leaves nobody waiting.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A folder to write into that becomes ``path`` when the block ends without an error."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        shutil.rmtree(path, ignore_errors=True)
        aside.rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
