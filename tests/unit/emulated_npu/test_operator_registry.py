# SPDX-License-Identifier: Apache-2.0
"""The wrapping of kernels as operators, with a pretended device, and the table of operators."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from emulated_npu import counters
from emulated_npu.operators import registry, table
from emulated_npu.operators.registry import OperatorArgumentError, operator
from emulated_npu.operators.requirements import HALF_FLOATS, require_dtype
from emulated_npu.settings import EmulatorSettings


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    """Tests register into a copy, and the meta device stands for npu."""
    monkeypatch.setattr(registry, "OPERATORS", dict(registry.OPERATORS))
    originals: dict[int, torch.Tensor] = {}

    def cpu_alias(tensor):
        return originals.setdefault(id(tensor), torch.zeros(tensor.shape, dtype=tensor.dtype))

    def npu_alias(tensor, _device_index=None):
        return tensor.to("meta")

    native = SimpleNamespace(cpu_alias=cpu_alias, npu_alias=npu_alias)
    monkeypatch.setattr(registry, "_native", lambda: native)
    _set_mode(monkeypatch, strict=True)


def _set_mode(monkeypatch, **changes):
    mode = dataclasses.replace(EmulatorSettings.from_environment({}), **changes)
    monkeypatch.setattr(registry, "settings", lambda: mode)


def make(**options):
    @operator("npu_example", source="here", **options)
    def npu_example(x, other=None):
        x += 1
        return x, x * 2

    return npu_example


def on_npu(*shape):
    return torch.empty(*shape, device="meta")


def test_a_result_that_is_an_argument_comes_back_as_the_callers_object():
    tensor = on_npu(3)
    same, fresh = make()(tensor)
    assert same is tensor
    assert fresh is not tensor
    assert fresh.device.type == "meta"


def test_launches_are_counted_by_name():
    example = make()
    before = counters.snapshot()
    example(on_npu(2))
    example(on_npu(2))
    assert (counters.snapshot() - before).launches == {"npu_example": 2}


def test_strict_mode_refuses_tensors_of_the_host(monkeypatch):
    example = make()
    with pytest.raises(OperatorArgumentError, match=r"npu_example: other is a CPU tensor"):
        example(on_npu(2), other=torch.zeros(1))
    with pytest.raises(OperatorArgumentError, match=r"npu_example: other is a CPU tensor"):
        example(on_npu(2), [torch.zeros(1)])
    _set_mode(monkeypatch, strict=False)
    example(on_npu(2), other=torch.zeros(1))


def test_host_arguments_may_be_on_the_host_and_cost_a_host_read_on_the_device():
    example = make(host_arguments=("other",))
    before = counters.snapshot()
    example(on_npu(2), other=torch.zeros(5))
    assert not (counters.snapshot() - before).host_reads
    example(on_npu(2), other=on_npu(5))
    reads = (counters.snapshot() - before).host_reads
    assert list(reads.values()) == [(1, 20)]


def test_checks_run_in_strict_mode_only_and_name_the_operator(monkeypatch):
    example = make()

    @example.check
    def _check(x):
        require_dtype("x", x, HALF_FLOATS)

    with pytest.raises(OperatorArgumentError, match=r"^npu_example: x is float32; documented"):
        example(on_npu(2))
    with pytest.raises(OperatorArgumentError, match=r"^npu_example: x is float32; documented"):
        example.checked(torch.zeros(2))
    _set_mode(monkeypatch, strict=False)
    example(on_npu(2))


def test_a_check_gets_the_arguments_that_it_lists_with_the_kernels_defaults():
    example, seen = make(), []

    @example.check
    def _check(other, x):
        seen.append((x, other))

    example.run_check(1)
    example.run_check(1, other=2)
    example.run_check(other=2, x=1)
    assert seen == [(1, None), (1, 2), (1, 2)]
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        example.run_check(other=2)


def test_a_check_may_take_all_arguments_at_once():
    example, seen = make(), []

    @example.check
    def _check(given):
        seen.append((given.x, given.other))

    example.run_check(1, 2)
    assert seen == [(1, 2)]


def test_a_check_of_parameters_that_the_kernel_has_not_is_refused():
    example = make()
    with pytest.raises(ValueError, match=r"_check reads y; .*npu_example has x, other"):

        @example.check
        def _check(x, y):
            pass


def test_a_name_is_registered_once_and_with_parameters_that_exist():
    make()
    with pytest.raises(ValueError, match="npu_example is already in"):
        make()
    with pytest.raises(ValueError, match="no such parameters"):
        make(namespace="other", writes=("y",))


def test_overloads_hang_on_their_operator():
    example = make()

    @operator("npu_example", overload="out", source="here")
    def npu_example_out(x):
        return x

    assert example.out is npu_example_out
    assert example.default is example
    assert registry.OPERATORS["npu_example.out"].function is npu_example_out
    with pytest.raises(AttributeError, match="npu_example has no overload"):
        _ = example.into


def test_a_missing_operator_says_its_name():
    with pytest.raises(NotImplementedError, match=r"emulated NPU has no torch_npu\.npu_xyz;"):
        registry.missing("npu_xyz")(1, a=2)


def test_the_page_of_operators_is_current():
    assert table.PAGE.read_text(encoding="utf-8") == table.page(), (
        "run python -m emulated_npu.operators.table"
    )


def test_every_operator_says_where_its_semantics_come_from():
    registry.load_all()
    assert [entry.key for entry in registry.OPERATORS.values() if not entry.source.strip()] == []
