# SPDX-License-Identifier: Apache-2.0
"""The schemas of the installed vllm-ascend, and the operators that are defined from them."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from unittest import mock

import pytest
import torch

from emulated_npu.custom_operators import library, schemas, sources
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
    path = schemas.find_schemas()
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


@pytest.fixture
def without_extension(tmp_path, monkeypatch):
    """A package installed from sources; its folder."""
    folder = tmp_path / "empty_ascend"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(schemas, "PACKAGE", "empty_ascend")
    monkeypatch.setattr(schemas, "installed_version", lambda: "1.2")
    monkeypatch.setattr(sources, "installed_version", lambda: "1.2")
    return folder


def test_a_package_without_its_extension_is_named(without_extension, monkeypatch):
    with pytest.raises(
        schemas.SchemaError, match=r"no vllm_ascend_C\*.so in .*empty_ascend"
    ) as info:
        schemas.find_schemas()
    assert "python -m emulated_npu.custom_operators.sources vllm_ascend-1.2.tar.gz" in str(
        info.value
    )
    monkeypatch.setattr(schemas, "PACKAGE", "no_such_package_at_all")
    assert schemas.find_schemas() is None


BINDING = """
#ifdef ASCEND_PLATFORM_310P
TORCH_LIBRARY_EXPAND(CONCAT(_C, _ascend), ops)
{
    ops.def("npu_of_another_device(Tensor x) -> Tensor");
}
#else
TORCH_LIBRARY_EXPAND(CONCAT(_C, _ascend), ops)
{
#ifdef SOME_PART
    ops.def("bgmv_shrink(Tensor! x, float scale) -> ()");
#endif
    // ops.def("npu_left_out(Tensor x) -> Tensor");
    ops.def(
        "npu_twice(Tensor x, "
        "          *, str mode=\\"a\\\\n\\") -> Tensor"
    );
    ops.impl("npu_twice", torch::kPrivateUse1, &twice);
    ops.def("npu_twice.list(Tensor[] x) -> Tensor");
}
#endif
"""


@pytest.fixture
def source_folder(tmp_path) -> Path:
    folder = tmp_path / "vllm_ascend-1.2"
    (folder / "csrc").mkdir(parents=True)
    (folder / "csrc" / "torch_binding.cpp").write_text(BINDING)
    (folder / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: vllm_ascend\nVersion: 1.2\n")
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_schemas_are_kept_from_sources(without_extension, source_folder, tmp_path, packed, capsys):
    path = source_folder
    if packed:
        path = tmp_path / "vllm_ascend-1.2.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            archive.add(source_folder, source_folder.name)
    assert sources.main([str(path)]) == 0
    kept = without_extension.parent / "empty_ascend-1.2.operators.txt"
    assert capsys.readouterr().out == f"wrote {kept}\n"
    assert schemas.find_schemas() == kept
    assert schemas.read_schemas(kept) == {
        "bgmv_shrink": "bgmv_shrink(Tensor! x, float scale) -> ()",
        "npu_twice": 'npu_twice(Tensor x, *, str mode="a\\n") -> Tensor',
        "npu_twice.list": "npu_twice.list(Tensor[] x) -> Tensor",
    }


def test_other_sources_are_refused(without_extension, source_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sources, "installed_version", lambda: "1.3")
    assert sources.main([str(source_folder)]) == 1
    assert "holds vllm-ascend 1.2, installed is 1.3" in capsys.readouterr().err
    assert sources.main([str(tmp_path)]) == 1
    assert "does not hold the sources of vllm-ascend" in capsys.readouterr().err
    monkeypatch.setattr(schemas, "PACKAGE", "no_such_package_at_all")
    assert sources.main([str(source_folder)]) == 1
    assert "not installed here" in capsys.readouterr().err


def test_kernels_fit_the_installed_schemas(installed):
    registry.load_all()
    kernels = registry.namespace_functions("_C_ascend")
    for name in set(kernels) & set(installed):
        library.kernel_for(kernels[name], installed[name])
    assert len(set(kernels) & set(installed)) > 30


def test_a_kernel_that_does_not_fit_is_named():
    registry.load_all()
    kernel = registry.namespace_functions("_C_ascend")["npu_gemma_rms_norm"]
    for schema in ("(Tensor x) -> Tensor", "(Tensor x, Tensor gamma, int other) -> Tensor"):
        with pytest.raises(schemas.SchemaError, match="npu_gemma_rms_norm has the parameters"):
            library.kernel_for(kernel, f"npu_gemma_rms_norm{schema}")


def test_a_kernel_serves_schemas_with_fewer_parameters():
    registry.load_all()
    kernel = registry.namespace_functions("_C_ascend")["npu_gemma_rms_norm"]
    x, gamma = torch.randn(2, 8), torch.randn(8)
    fewer = library.kernel_for(kernel, "npu_gemma_rms_norm(Tensor gamma, *, Tensor x) -> Tensor")
    # The kernel itself, since a call of the operator needs the device.
    with mock.patch.object(type(kernel), "__call__", lambda self, **named: self.kernel(**named)):
        got = fewer(gamma, x=x)
    torch.testing.assert_close(got, kernel.kernel(x, gamma))


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
attempt("tensors", torch.ops._C_ascend.npu_sign_bits_pack, torch.zeros(1), 1)
attempt("cpu", torch.ops._C_ascend.npu_gemma_rms_norm, torch.zeros(1, 2), torch.zeros(2))
stub = sys.modules["vllm_ascend.vllm_ascend_C"]
messages["stub"] = sorted(name for name in vars(stub) if not name.startswith("__"))
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
        ("tensors", "torch.ops._C_ascend.npu_sign_bits_pack"),
    ):
        assert messages[name][0] == "NotImplementedError"
        assert messages[name][1].startswith(f"emulated NPU has no {operator_name};")
    # The allocator of vllm-ascend's sleep mode, and nothing else of the extension.
    assert messages["stub"] == ["init_module", "python_create_and_map", "python_unmap_and_release"]
    # No kernel for CPU tensors, as in the real extension.
    assert "arguments from the 'CPU' backend" in messages["cpu"][1]
    # Others are vllm_ascend.meta_registration's to give.
    given = set(installed) & {*traced.TRACED_CUSTOM, *traced.SHAPES}
    assert sorted(meta) == [f"_C_ascend::{name}" for name in sorted(given)]
    assert shape == [2, 3]
