# SPDX-License-Identifier: Apache-2.0
"""Tensors on the emulated device behave as PyTorch's do: dtypes, views, identity, resizing."""

from __future__ import annotations

import copy

import pytest
import torch

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_of_each_dtype_survives_the_way_there_and_back(dtype: torch.dtype) -> None:
    original = torch.arange(6).reshape(2, 3).to(dtype)
    on_device = original.to("npu")
    assert on_device.dtype == dtype
    assert on_device.device == torch.device("npu", 0)
    assert on_device.is_npu
    assert not original.is_npu
    assert torch.equal(on_device.cpu(), original)


def test_factories_and_arithmetic() -> None:
    assert (torch.zeros(3, device="npu") + 1).tolist() == [1.0, 1.0, 1.0]
    assert torch.arange(3, device="npu").npu().device.type == "npu"
    assert torch.full((2,), 7, device="npu").tolist() == [7, 7]
    assert torch.tensor([1, 2], device="npu:1").device == torch.device("npu:1")
    assert torch.ones_like(torch.empty(2, device="npu")).device.type == "npu"


def test_views_share_memory_with_their_base() -> None:
    base = torch.zeros(4, 6, device="npu")
    views = {
        "slice": base[1:3],
        "transpose": base.t(),
        "view": base.view(24),
        "as_strided": base.as_strided((2, 2), (6, 1), 7),
        "unfold": base.unfold(1, 2, 2),
        "diagonal": base.diagonal(),
        "expand": base[:, :1].expand(4, 3),
        "view_as_other_dtype": base.view(torch.int32),
        "split": base.split(2)[1],
        "unbind": base.unbind()[3],
    }
    for name, view in views.items():
        assert view.device == base.device, name
        assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr(), name
    views["slice"].fill_(5)
    assert base[1].tolist() == [5.0] * 6
    assert base[3].tolist() == [0.0] * 6
    assert views["transpose"][:, 2].tolist() == [5.0] * 6
    views["as_strided"].mul_(2)
    assert base[1].tolist() == [5.0, 10.0, 10.0, 5.0, 5.0, 5.0]


def test_views_made_by_a_cpu_kernel_stay_views() -> None:
    base = torch.zeros(4, dtype=torch.complex64, device="npu")
    torch.view_as_real(base)[:, 1] = 3.0
    assert base.imag.tolist() == [3.0] * 4


def test_in_place_and_out_keep_the_tensor_object() -> None:
    x = torch.ones(3, device="npu")
    address = x.data_ptr()
    assert x.add_(1) is x
    assert torch.mul(x, 3, out=x) is x
    assert x.clamp_(max=5.0) is x
    assert x.index_fill_(0, torch.tensor([0], device="npu"), 9.0) is x
    assert x.data_ptr() == address
    assert x.tolist() == [9.0, 5.0, 5.0]


def test_out_of_another_size_is_resized_in_place() -> None:
    out = torch.empty(0, device="npu")
    storage = out.untyped_storage()
    assert torch.cumsum(torch.ones(300, device="npu"), 0, out=out) is out
    assert out.shape == (300,)
    assert out[-1].item() == 300.0
    assert storage.nbytes() == 300 * 4, "the storage object that was there has grown"


def test_several_outputs() -> None:
    values = torch.empty(2, device="npu")
    indices = torch.empty(2, dtype=torch.int64, device="npu")
    result = torch.topk(torch.tensor([1.0, 5.0, 3.0], device="npu"), 2, out=(values, indices))
    assert result.values is values
    assert result.indices is indices
    assert values.tolist() == [5.0, 3.0]
    assert indices.tolist() == [1, 2]


def test_operands_that_share_memory_are_seen_to_overlap() -> None:
    base = torch.arange(6.0, device="npu")
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.add(base[:-1], 1, out=base[1:])
    assert base.view(2, 3).view(6).is_set_to(base), "one storage within one call"
    assert not base.clone().is_set_to(base)
    with pytest.raises(RuntimeError, match="more than one element"):
        base[:1].expand(3).add_(1)


def test_resize_keeps_content_and_grows_shared_storage() -> None:
    x = torch.arange(4.0, device="npu")
    other = x.view(2, 2)
    x.resize_(3000)
    assert x[:4].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert x.untyped_storage().nbytes() == 12000
    other.fill_(1)
    assert x[:4].tolist() == [1.0] * 4


def test_set_points_to_another_storage() -> None:
    x = torch.empty(0, device="npu")
    source = torch.arange(6.0, device="npu")
    x.set_(source)
    assert x.shape == (6,)
    x.set_(source.untyped_storage(), 2, (2, 2), (2, 1))
    x.fill_(-1)
    assert source.tolist() == [0.0, 1.0, -1.0, -1.0, -1.0, -1.0]
    assert x.set_().numel() == 0
    assert x.device.type == "npu"


def test_storage_resize() -> None:
    x = torch.arange(4.0, device="npu")
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
    x.untyped_storage().resize_(16)
    assert x.fill_(2).tolist() == [2.0] * 4


def test_channels_last() -> None:
    x = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    y = x.to("npu").contiguous(memory_format=torch.channels_last)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert (y + 1).is_contiguous(memory_format=torch.channels_last)
    empty = torch.empty((2, 3, 4, 5), device="npu", memory_format=torch.channels_last)
    assert empty.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y.cpu(), x)


def test_convolution_and_attention_have_kernels() -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, 3, 8, 8, generator=generator)
    layer = torch.nn.Conv2d(3, 4, 3)
    expected = layer(image)
    assert torch.equal(layer.npu()(image.npu()).cpu(), expected)
    query = torch.randn(1, 2, 5, 8, generator=generator)
    expected = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    on_device = torch.nn.functional.scaled_dot_product_attention(*[query.npu()] * 3)
    torch.testing.assert_close(on_device.cpu(), expected)


def test_lazy_conjugation_is_kept() -> None:
    x = torch.tensor([1 + 2j], device="npu").conj()
    assert x.is_conj()
    assert x.cpu().item() == 1 - 2j
    assert (x * 1).item() == 1 - 2j


def test_grad_modes() -> None:
    with torch.inference_mode():
        x = torch.ones(2, device="npu")
        x.add_(1)
        x[0] = 5
        assert x.is_inference()
        assert x.view(2, 1)[0].item() == 5
    with torch.no_grad():
        assert (torch.ones(2, device="npu") * 2).tolist() == [2.0, 2.0]
    weight = torch.tensor([3.0], device="npu", requires_grad=True)
    (weight * weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [6.0]


def test_deepcopy_and_parameters() -> None:
    layer = torch.nn.Linear(3, 2).to("npu")
    twin = copy.deepcopy(layer)
    assert twin.weight.device.type == "npu"
    assert twin.weight.data_ptr() != layer.weight.data_ptr()
    assert torch.equal(twin.weight, layer.weight)


def test_an_unknown_device_index_is_refused_with_the_number_of_devices() -> None:
    beyond = torch.npu.device_count()
    with pytest.raises(RuntimeError, match=rf"npu:{beyond}.*{beyond} device\(s\)"):
        torch.empty(1, device=f"npu:{beyond}")
    with pytest.raises(RuntimeError, match="EMULATED_NPU_DEVICES"):
        torch.npu.set_device(beyond)
    assert torch.npu.current_device() == 0
