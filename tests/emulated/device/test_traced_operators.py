# SPDX-License-Identifier: Apache-2.0
"""Operators in code that Dynamo traces: what they say of their results is what these are."""

import npugraph_ex
import pytest
import torch
import torch_npu
from torch._subclasses.fake_tensor import FakeTensorMode

from emulated_npu.operators import traced
from emulated_npu.operators.registry import OperatorArgumentError
from tests.support import hosts

HIDDEN, HALF = 128, 64


def calls():
    x, y = torch.randn(3, HIDDEN, dtype=torch.float16).npu(), torch.randn(3, HIDDEN).half().npu()
    weight, rope = torch.ones(HIDDEN).half().npu(), torch.randn(1, 3, 1, HIDDEN).half().npu()
    return {
        "npu_rms_norm": (x, weight, 1e-5),
        "npu_add_rms_norm": (x, y, weight),
        "npu_swiglu": (x,),
        "npu_clipped_swiglu": (x,),
        "npu_fast_gelu": (x,),
        "npu_rotary_mul": (torch.randn(1, 3, 2, HIDDEN).half().npu(), rope, rope),
        "npu_mrope": (torch.arange(3).npu(), x, y[:, :HALF].contiguous(), x[:, :HALF], HALF),
        "npu_gemma_rms_norm": (x, weight, 1e-5),
        "npu_add_rms_norm_bias": (x, y, weight, None, 1e-5),
        "npu_rms_norm_cast": (x, weight, 1e-5),
        "npu_dynamic_quant": (x,),
        "npu_add_rms_norm_quant": (x, y, weight, weight.float(), None),
        "npu_add_rms_norm_dynamic_quant": (x, y, weight),
        "npu_dynamic_mx_quant": (x,),
        "npu_rms_norm_dynamic_mx_quant": (x, weight),
        "npu_add_rms_norm_dynamic_mx_quant": (x, y, weight),
    }


OF_ANOTHER_CHIP = [name for name in traced.TRACED if name.endswith("_mx_quant")]
"""Documented for the Ascend 950; the emulated NPU is an A2, and strict here."""


@pytest.mark.parametrize("name", OF_ANOTHER_CHIP)
def test_operators_of_another_chip_are_refused(name):
    with pytest.raises(OperatorArgumentError, match="950"):
        getattr(torch.ops.npu, name)(*calls()[name])


@pytest.mark.parametrize(
    "name", [*(n for n in traced.TRACED if n not in OF_ANOTHER_CHIP), *traced.TRACED_CUSTOM]
)
def test_fake_results_are_like_the_real_ones(name):
    namespace = torch.ops.npu if name in traced.TRACED else torch.ops._C_ascend
    if name == "npu_rms_norm_cast" and hosts.NAME == "vllm_ascend_0_23":
        pytest.skip("vllm-ascend 0.23.0 does not have it")
    operator, arguments = getattr(namespace, name), calls()[name]
    real = operator(*arguments)
    with FakeTensorMode() as mode:
        fakes = [
            mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
            for value in arguments
        ]
        fake = operator(*fakes)
    real, fake = ((part,) if isinstance(part, torch.Tensor) else part for part in (real, fake))
    assert [_like(part) for part in fake] == [_like(part) for part in real]


def _like(tensor):
    return tensor.shape, tensor.dtype, tensor.stride(), tensor.device.type


def test_each_is_traced():
    """One that leaves the list would be met by Dynamo in an engine alone."""
    assert set(calls()) == {*traced.TRACED, *traced.TRACED_CUSTOM}


def test_they_are_what_torch_npu_has():
    assert torch_npu.npu_rms_norm is torch.ops.npu.npu_rms_norm
    with pytest.raises(OperatorArgumentError, match="CPU tensor"):
        torch_npu.npu_swiglu(torch.zeros(2, HIDDEN))


@pytest.mark.parametrize("name", traced.UNTRACED)
def test_attention_has_both_names(name):
    assert getattr(torch.ops.npu, name) is getattr(torch_npu, name)


def test_static_kernels_are_refused():
    config = npugraph_ex.CompilerConfig(static_kernel_compile=True)
    with pytest.raises(NotImplementedError, match="static kernels"):
        npugraph_ex.get_npu_backend(compiler_config=config)
