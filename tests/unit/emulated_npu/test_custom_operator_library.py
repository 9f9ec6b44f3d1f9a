# SPDX-License-Identifier: Apache-2.0
"""The schemas in the installed wheel, and the operators that are defined from them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from emulated_npu.custom_operators import library, schemas
from emulated_npu.operators import registry, traced

GOOD = b"npu_twice(Tensor x, *, float scale=1.0) -> (Tensor y, Tensor z)"


@pytest.fixture
def write(tmp_path: Path):
    def write_extension(*strings: bytes) -> Path:
        path = tmp_path / "vllm_ascend_C.so"
        path.write_bytes(b"\x7fELF\x00" + b"\x00".join(strings) + b"\x00\xff\xfe")
        return path

    return write_extension


@pytest.fixture(scope="module")
def installed() -> dict[str, str]:
    path = schemas.find_extension()
    if path is None:
        pytest.skip("vllm-ascend is not installed")
    return schemas.read_schemas(path)


def test_schemas_are_found_among_other_strings(write):
    path = write(b"main(", b"text -> text", GOOD, b"print( Tensor   x )->()", b"\x01\x02f() -> ()")
    found = schemas.read_schemas(path)
    assert found == {"npu_twice": GOOD.decode(), "print": "print( Tensor x )->()"}
    assert schemas.parameter_names(found["npu_twice"]) == ["x", "scale"]


def test_a_file_without_schemas_is_named(write):
    path = write(b"nothing", b"here")
    with pytest.raises(schemas.SchemaError, match=f"no operator schema in {path}"):
        schemas.read_schemas(path)


def test_a_schema_that_does_not_parse_is_shown(write):
    path = write(GOOD, b"broken(Tenser x) -> ()")
    with pytest.raises(schemas.SchemaError, match=r"'broken\(Tenser x\) -> \(\)'"):
        schemas.read_schemas(path)


def test_two_schemas_of_one_name_are_refused(write):
    path = write(GOOD, b"npu_twice(Tensor x) -> ()")
    with pytest.raises(schemas.SchemaError, match="two schemas of npu_twice"):
        schemas.read_schemas(path)
    assert list(schemas.read_schemas(write(GOOD, GOOD))) == ["npu_twice"]


def test_a_package_without_its_extension_is_named(tmp_path, monkeypatch):
    (tmp_path / "empty_ascend").mkdir()
    (tmp_path / "empty_ascend" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(schemas, "PACKAGE", "empty_ascend")
    with pytest.raises(schemas.SchemaError, match=r"no vllm_ascend_C\*.so in .*empty_ascend"):
        schemas.find_extension()
    monkeypatch.setattr(schemas, "PACKAGE", "no_such_package_at_all")
    assert schemas.find_extension() is None


def test_the_installed_wheel_has_the_schemas(installed):
    assert len(installed) == 65
    assert "npu_add_rms_norm_bias" in installed


def test_kernels_fit_the_installed_schemas(installed):
    registry.load_all()
    kernels = registry.namespace_functions("_C_ascend")
    assert len(kernels) >= 13
    library.require_matching(kernels, installed)


def test_a_kernel_that_does_not_fit_is_named(installed):
    registry.load_all()
    kernels = registry.namespace_functions("_C_ascend")
    changed = dict(installed, npu_gemma_rms_norm="npu_gemma_rms_norm(Tensor x) -> Tensor")
    with pytest.raises(schemas.SchemaError, match=r"npu_gemma_rms_norm has the parameters \['x'\]"):
        library.require_matching(kernels, changed)
    del changed["npu_gemma_rms_norm"]
    with pytest.raises(schemas.SchemaError, match="no operators npu_gemma_rms_norm"):
        library.require_matching(kernels, changed)


INSTALL = """
import importlib, json, sys, torch
from emulated_npu.custom_operators import install
install()
install()
names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("_C_ascend::")]
messages = {}
def attempt(name, function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        messages[name] = [type(error).__name__, str(error)]
attempt("string", torch.ops._C_ascend.device_print, "text")
attempt("tensors", torch.ops._C_ascend.npu_load_index_kv_cache, *[torch.zeros(1)] * 2)
attempt("cpu", torch.ops._C_ascend.npu_gemma_rms_norm, torch.zeros(1, 2), torch.zeros(2))
stub = sys.modules["vllm_ascend.vllm_ascend_C"]
attempt("stub", stub.init_module)
# What vllm_ascend.meta_registration does.
meta = torch._C._dispatch_get_registrations_for_dispatch_key("Meta")
ours = [name for name in meta if name.startswith("_C_ascend::")]
more = torch.library.Library("_C_ascend", "IMPL")
more.impl("bgmv_expand", lambda x, w, i, y, a, b: torch.empty_like(y), "Meta")
x = torch.empty(2, 3, device="meta")
shape = list(torch.ops._C_ascend.bgmv_expand(x, x, x, x, 0, 3).shape)
print(json.dumps([len(names), messages, ours, shape]))
"""


def test_install_defines_every_operator_once(installed):
    # In a process of its own: what torch.library defines stays.
    output = subprocess.run(
        [sys.executable, "-c", INSTALL], capture_output=True, text=True, check=True
    ).stdout
    count, messages, meta, shape = json.loads(output.splitlines()[-1])
    assert count == len(installed)
    for name, operator_name in (
        ("string", "torch.ops._C_ascend.device_print"),
        ("tensors", "torch.ops._C_ascend.npu_load_index_kv_cache"),
        ("stub", "vllm_ascend.vllm_ascend_C.init_module"),
    ):
        assert messages[name][0] == "NotImplementedError"
        assert messages[name][1].startswith(f"emulated NPU has no {operator_name};")
    # No kernel for CPU tensors, as in the real extension.
    assert "arguments from the 'CPU' backend" in messages["cpu"][1]
    # Others are vllm_ascend.meta_registration's to give.
    given = (*traced.TRACED_CUSTOM, *traced.SHAPES)
    assert sorted(meta) == [f"_C_ascend::{name}" for name in sorted(given)]
    assert shape == [2, 3]
