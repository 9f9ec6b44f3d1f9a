# SPDX-License-Identifier: Apache-2.0
"""Argument lists of torch_npu's operators, from the wheel that vllm-ascend pins.

The wheel needs no CANN to be read: its code generator's lists have the schema of each operator, and
those of ATB stand as text in a library. Compared with them are the argument lists of the emulated
operators, and each call of them in the installed vllm-ascend and in our adapters.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

import foreign_names
import host_release

if TYPE_CHECKING:
    from emulated_npu.operators.registry import OperatorEntry

LISTS = ("npu_native_functions.yaml", "npu_native_functions_by_codegen.yaml")
LISTED = ("custom", "custom_autograd")
"""Sections of operators that PyTorch does not have."""
NAMED_DIMENSIONS = "Dimname"
"""PyTorch's parser has no such type; nothing that is called here has it."""
ATB = "torch_npu/lib/libop_plugin_atb.so"
TEXT_OF_SCHEMA = re.compile(rb"_?npu_[a-z0-9_]+(?:\.\w+)?\([ -~]+\) -> [ -~]+")
TORCH_NPU = "torch_npu"
CALLED = (TORCH_NPU, "torch.ops.npu", "torch.ops.atb")
FEWEST = 400
"""Below this many operators the wheel was not read as it is meant."""
LACKED = {
    "npu_grouped_matmul_swiglu_quant_v2": "vllm-ascend gives weight_scale_dtype and x_scale_dtype",
}
"""Calls of a host that this version of torch_npu refuses: what is known of them."""


@dataclass(frozen=True)
class Argument:
    """One argument: whether it is given by keyword alone, and its default if it has one."""

    name: str
    by_keyword: bool = False
    has_default: bool = False
    default: Any = None


Arguments = tuple[Argument, ...]


def read(wheel: Path) -> dict[str, dict[str, Arguments]]:
    """Name of an operator -> name of an overload, empty for the plain one -> its arguments.

    Raises:
        ValueError: the wheel has not the files that it should have.
    """
    found: dict[str, dict[str, Arguments]] = {}
    for text in _schemas(wheel):
        if NAMED_DIMENSIONS in text:
            continue
        schema = torch._C.parse_schema(text)
        found.setdefault(schema.name, {})[schema.overload_name] = _of_schema(schema)
    if len(found) < FEWEST:
        raise ValueError(f"{wheel.name} has {len(found)} operators; over {FEWEST} are expected")
    return found


def _schemas(wheel: Path) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as archive:
        for name in LISTS:
            sections = yaml.safe_load(archive.read(f"torch_npu/csrc/aten/{name}"))
            for section in LISTED:
                for row in sections.get(section) or ():
                    yield row["func"]
        for found in TEXT_OF_SCHEMA.findall(archive.read(ATB)):
            yield re.sub(r"\s+\?", "?", found.decode("ascii"))


def _of_schema(schema: Any) -> Arguments:
    """As torch_npu registers it: several tensors that are written by keyword are a list ``out``.

    It has ``input`` for ``self``. Source: torchnpugen/custom_functions.py of the wheel,
    RegisterCustomSchema.
    """
    written = [
        one.name
        for one in schema.arguments
        if one.kwarg_only and one.alias_info is not None and one.alias_info.is_write
    ]
    merged = written if len(written) > 1 else []
    made = [
        Argument(
            "input" if one.name == "self" else one.name,
            one.kwarg_only,
            one.has_default_value(),
            one.default_value if one.has_default_value() else None,
        )
        for one in schema.arguments
        if one.name not in merged
    ]
    return (*made, Argument("out", by_keyword=True)) if merged else tuple(made)


def of_kernel(entry: OperatorEntry) -> Arguments:
    """The arguments of an emulated operator."""
    assert entry.function is not None
    made: list[Argument] = []
    for one in inspect.signature(entry.function.kernel).parameters.values():
        if one.kind is one.VAR_KEYWORD:
            made += [Argument(name, True, True, default) for name, default in entry.options.items()]
            continue
        has_default = one.default is not one.empty
        default = one.default if has_default else None
        made.append(Argument(one.name, one.kind is one.KEYWORD_ONLY, has_default, default))
    return tuple(made)


def differences(ours: Arguments, overloads: Sequence[Arguments]) -> list[str]:
    """What is unlike in the overload that is most like ours; nothing where one is the same."""
    return min((_unlike(ours, real) for real in overloads), key=len)


def _unlike(ours: Arguments, real: Arguments) -> list[str]:
    told = []
    for by_keyword in (False, True):
        mine, theirs = (
            {one.name: one for one in arguments if one.by_keyword is by_keyword}
            for arguments in (ours, real)
        )
        kind = "by keyword" if by_keyword else "by position"
        told += [f"no {name} {kind}" for name in theirs if name not in mine]
        told += [f"{name} {kind} is not there" for name in mine if name not in theirs]
        if not told and not by_keyword and list(mine) != list(theirs):
            told.append(f"the order is {', '.join(theirs)}")
        told += [
            f"{name} is {_default(theirs[name])} by default, not {_default(mine[name])}"
            for name in mine
            if name in theirs and not _same_default(mine[name], theirs[name])
        ]
    return told


def _same_default(first: Argument, second: Argument) -> bool:
    nothing: tuple[Any, ...] = (None, (), [])
    if first.has_default is not second.has_default:
        return False
    mine, theirs = first.default, second.default
    return bool(mine == theirs) or (mine in nothing and theirs in nothing)


def _default(argument: Argument) -> str:
    return repr(argument.default) if argument.has_default else "required"


def unlike_operators(known: Mapping[str, Mapping[str, Arguments]]) -> Iterator[str]:
    """A line for each emulated operator of torch_npu whose arguments are not the real ones."""
    from emulated_npu.operators import registry

    registry.load_all()
    for entry in registry.OPERATORS.values():
        if entry.namespace != TORCH_NPU:
            continue
        overloads = known.get(entry.name, {})
        asked = [real for name, real in overloads.items() if entry.overload in ("", name)]
        if not asked:
            yield f"{entry.key}: torch_npu has no such operator"
        elif told := differences(of_kernel(entry), asked):
            yield f"{entry.key}: {'; '.join(told)}"


def refused_calls(
    files: Iterable[Path], known: Mapping[str, Mapping[str, Arguments]]
) -> Iterator[str]:
    """A line for each call in these files that no overload of its operator takes."""
    for path in files:
        for node in ast.walk(foreign_names.tree_of(path)):
            if not isinstance(node, ast.Call):
                continue
            owner, _, name = (
                ast.unparse(node.func).removesuffix(".out").removesuffix(".default").rpartition(".")
            )
            if owner not in CALLED or name not in known:
                continue
            told = min((_refusal(node, real) for real in known[name].values()), key=len)
            if told:
                yield f"{path.name}:{node.lineno}: {name}: {told}"


def _refusal(call: ast.Call, real: Arguments) -> str:
    """Why an overload does not take a call; empty where it does, or where stars hide it."""
    if any(isinstance(one, ast.Starred) for one in call.args):
        return ""
    positional = [one.name for one in real if not one.by_keyword]
    if len(call.args) > len(positional):
        return f"{len(call.args)} arguments by position, of {len(positional)}"
    names = {one.name for one in real}
    given = [*positional[: len(call.args)]]
    for keyword in call.keywords:
        if keyword.arg is None:
            return ""
        if keyword.arg not in names:
            return f"no argument {keyword.arg}"
        given.append(keyword.arg)
    lacking = [one.name for one in real if not one.has_default and one.name not in given]
    return f"{', '.join(lacking)} not given" if lacking else ""


def files_to_read() -> list[Path]:
    """Sources of the installed vllm-ascend, and our adapters."""
    spec = importlib.util.find_spec("vllm_ascend")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    return [
        *foreign_names.all_sources(),
        *(path for folder in folders for path in sorted(folder.rglob("*.py"))),
    ]


def arguments_by_number(wheel: Path) -> dict[str, frozenset[str]]:
    """Operator -> its arguments of type int, for which PyTorch takes a dtype by its number."""
    found: dict[str, frozenset[str]] = {}
    for text in _schemas(wheel):
        if NAMED_DIMENSIONS not in text:
            schema = torch._C.parse_schema(text)
            names = {one.name for one in schema.arguments if str(one.type).endswith("int]")}
            names |= {one.name for one in schema.arguments if str(one.type) == "int"}
            found[schema.name] = found.get(schema.name, frozenset()) | names
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say which wheel is read."""
    parser.add_argument(
        "--wheel", type=Path, help="of torch_npu (the pinned one, fetched with pip)"
    )
    parser.add_argument(
        "--if-served", action="store_true", help="no failure where no index has the wheel"
    )


def wheel_of(options: argparse.Namespace) -> Path | None:
    """The wheel that is asked for, fetched if need be; None, and a line, where it cannot be had."""
    try:
        given: Path | None = options.wheel
        return given or host_release.torch_npu_wheel()
    except host_release.FetchError as error:
        print(f"not compared: {error}")
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 where something is unlike."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_arguments(parser)
    options = parser.parse_args(arguments)
    wheel = wheel_of(options)
    if wheel is None:
        return 0 if options.if_served else 1
    known = read(wheel)
    unlike = [*unlike_operators(known)]
    refused = [*refused_calls(files_to_read(), known)]
    unknown = [line for line in refused if line.split(": ")[1] not in LACKED]
    print(*unlike, *unknown, sep="\n")
    print(f"{wheel.name}: {len(known)} operators; {len(unlike)} emulated ones differ;", end=" ")
    print(f"{len(unknown)} calls are refused, {len(refused) - len(unknown)} more are known")
    return 1 if unlike or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
