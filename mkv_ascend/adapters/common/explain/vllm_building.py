# SPDX-License-Identifier: Apache-2.0
"""Build target and draft as vLLM builds them, on the meta device, and tell what their layers keep.

Runs in a process of its own (``explain_process``), by a module of the host's adapter. The
configuration, the model classes, the backends and the specs are those of an engine; weights have no
memory, ranks other than the first do not exist, and nothing is ever computed.
"""

from __future__ import annotations

import copy
import functools
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from mkv_ascend.adapters.installed import adapter
from mkv_ascend.adapters.patching import record
from mkv_ascend.checks.weight_formats import DESCRIPTION

if TYPE_CHECKING:
    from vllm.config import VllmConfig

PRETENDED = record(
    name="models without memory, for explain",
    target=(
        "vllm.model_executor.model_loader:get_model",
        "vllm.model_executor.layers.rotary_embedding:get_rope",
        "vllm_ascend.ops.rope_dsv4:current_platform",
    ),
    writes=(
        "verify_equal_vocab_size_if_draft_model",
        "new_group",
        "create_from_process_group",
        "broadcast_object_list",
        "all_gather_object",
        "_draft_attn_layer_names",
        "model",
        "current_platform",
        "npu",
    ),
    why="explain asks what an engine would allocate, without its devices and its memory. Only the "
    "process that answers is changed, and it ends then.",
    until="vLLM plans caches without loading models",
    test="tests/emulated/layout/test_planner.py",
)


class ExplainHost(Protocol):
    """What differs between hosts: the module of an adapter, which has these functions."""

    def prepare_grouping(self, config: VllmConfig, specs: Mapping[str, Any]) -> None:
        """Do what an engine core does with the models' specs before it groups them."""

    def group_specs(
        self, specs: dict[str, Any], tokens: int, tokens_per_step: int, encoder_tokens: int = 0
    ) -> dict[str, Any]:
        """vLLM's own grouping of these specs: the fields of ``OtherGrouping``."""


MAX_NUM_SEQS = 8
"""Few: buffers of the runner are made, and no request is ever run."""


def build(question: Mapping[str, Any], host: ExplainHost) -> dict[str, Any]:
    """What ``from_vllm.find`` reads: the inputs of the plan, notes, vLLM's own grouping.

    ``{"error": ...}`` with vLLM's or vllm-ascend's words where they refuse the models,
    ``{"unplanned": ...}`` with the reason where the caches are left to vllm-ascend.
    """
    try:  # Whatever they raise is the answer.
        with tempfile.TemporaryDirectory() as folder:
            return _built(question, Path(folder), host)
    except Exception as error:
        return {"error": _described(error)}


def _described(error: Exception) -> str:
    text = str(error).strip() or "no message"
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    file = Path(place.tb_frame.f_code.co_filename).name if place else "?"
    return f"{type(error).__name__}: {text} ({file}:{place.tb_lineno if place else 0})"


def _built(question: Mapping[str, Any], folder: Path, host: ExplainHost) -> dict[str, Any]:
    import vllm_ascend.ops  # noqa: F401  First of vllm_ascend, or its imports go in a circle.
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

    from mkv_ascend.adapters.common.kv_cache import planned_groups
    from mkv_ascend.layout.serialization import to_dict

    config, notes = _configure(question["engine"], folder)
    adapter().patch_worker()
    _pretend_ranks(config)
    runner = _runner_with_models(config)
    specs = runner.get_kv_cache_spec()
    if (reason := adapter().runner_host().why_not_planned(config, [specs])) is not None:
        return {"unplanned": reason}
    backends = _backends(config, runner)
    stock = None
    if question["vllm_grouping"] and specs:
        encoder = config.scheduler_config.max_num_encoder_input_tokens
        drafted = config.num_speculative_tokens if config.speculative_config else 0
        stock = host.group_specs(
            copy.deepcopy(specs), config.model_config.max_model_len, 1 + drafted, encoder
        )
    # As in an engine core, whose functions are replaced when specs are registered.
    register_all_kvcache_specs(config)
    host.prepare_grouping(config, specs)
    groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    inputs = planned_groups.inputs_of(config, specs, groups)
    layers = tuple(replace(layer, backend=backends[layer.layout.layer]) for layer in inputs.layers)
    return {
        "inputs": to_dict(replace(inputs, layers=layers)),
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "shared": sorted(runner.shared_kv_cache_layers.items()),
        "notes": notes,
        "vllm": stock,
    }


def _backends(config: VllmConfig, runner: Any) -> dict[str, str]:
    """Backend by layer; the class of those that the catalog does not have."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    from mkv_ascend.adapters.common.attention import layers

    chosen = {
        choice.request.name: choice.backend.name
        for choice in layers.all_choices(config, runner.draft_layers())
    }
    found = get_layers_from_vllm_config(config, AttentionLayerBase)
    return {
        name: chosen.get(name) or layer.get_attn_backend().__name__ for name, layer in found.items()
    }


def _configure(engine: Mapping[str, Any], folder: Path) -> tuple[VllmConfig, list[str]]:
    """The engine's configuration, from copies of the config.json files without quantisation."""
    from vllm.config import SpeculativeConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    notes: list[str] = []
    SpeculativeConfig.verify_equal_vocab_size_if_draft_model = lambda self: notes.extend(
        _other_vocabulary(self)
    )
    given = {name: value for name, value in engine.items() if value is not None}
    given["model"] = _unquantised(Path(given["model"]), folder / "target", notes)
    speculative = given.get("speculative_config")
    if speculative is not None and speculative.get("model"):
        draft = _unquantised(Path(speculative["model"]), folder / "draft", notes)
        given["speculative_config"] = {**speculative, "model": draft}
    if given.get("tensor_parallel_size", 1) > 1:
        given["distributed_executor_backend"] = "mp"
    given.setdefault("max_num_seqs", MAX_NUM_SEQS)
    arguments = EngineArgs(
        **{
            **given,
            "skip_tokenizer_init": True,
            "load_format": "dummy",
            "enforce_eager": True,
            "language_model_only": True,
        }
    )
    return arguments.create_engine_config(UsageContext.OPENAI_API_SERVER), notes


def _other_vocabulary(speculative: Any) -> Iterator[str]:
    """What vLLM refuses of a draft model, and what no cache depends on."""
    sizes = [
        model.get_vocab_size()
        for model in (speculative.target_model_config, speculative.draft_model_config)
        if speculative.method == "draft_model"
    ]
    if len(set(sizes)) > 1:
        yield f"vLLM refuses this draft: its vocabulary has {sizes[1]} tokens, not {sizes[0]}"


def _unquantised(model: Path, copy: Path, notes: list[str]) -> str:
    """A folder with the model's config.json, without the quantisation of its weights.

    Code that a configuration consists of (``--trust-remote-code``) lies beside it. Quantised
    weights need operators and dtypes when they are made, and keep nothing in a cache.
    """
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    for part in (config, config.get("text_config") or {}):
        if found := part.pop("quantization_config", None):
            notes.append(
                f"the quantisation of {model.resolve().name} "
                f"({found.get('quant_method', 'of its own')}) is left out: caches as without it"
            )
    if (model / DESCRIPTION).is_file():
        notes.append(
            f"the quantisation of {model.resolve().name} ({DESCRIPTION}) is left out: caches as "
            "without it"
        )
    copy.mkdir()
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for code in model.glob("*.py"):
        shutil.copy(code, copy)
    return str(copy)


def _pretend_ranks(config: VllmConfig) -> None:
    """Process groups of as many ranks as asked for, of which this is the first and only one."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import FakeProcessGroup
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, parallel_state
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
    from vllm_ascend.ascend_config import init_ascend_config
    from vllm_ascend.distributed.parallel_state import init_ascend_model_parallel
    from vllm_ascend.utils import adapt_patch, register_ascend_customop

    from mkv_ascend.adapters.common.patches import expert_groups

    adapt_patch()
    register_ascend_customop(config)
    init_ascend_config(config)

    def pretended(options: Any, _: Any = None) -> Any:
        return FakeProcessGroup._create_internal(options.group_rank, options.group_size)

    name = "mkv_ascend_pretended"
    devices = ["cpu", "npu"]
    dist.Backend.register_backend(name, pretended, extended_api=True, devices=devices)
    new_group = dist.new_group
    dist.new_group = lambda ranks=None, *_, **__: new_group(ranks, backend=name)
    ranks = config.parallel_config.world_size
    dist.init_process_group(name, store=FakeStore(), rank=0, world_size=ranks)
    # What other ranks would have to answer.
    MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)
    dist.broadcast_object_list = lambda *_, **__: None
    dist.all_gather_object = lambda found, own, *_, **__: found.__setitem__(
        slice(None), [own] * len(found)
    )
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(ranks, 0, "env://", 0, name)
        ensure_model_parallel_initialized(ranks, 1)
        init_ascend_model_parallel(config.parallel_config)
        expert_groups.make_for_draft(config)


def _runner_with_models(config: VllmConfig) -> Any:
    """Our model runner; both models are built, and nothing of them is loaded."""
    import torch
    from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader import get_model
    from vllm.platforms import current_platform

    from mkv_ascend.adapters.common.runner import MkvModelRunner

    _rotary_tables_where_needed()
    _keep_tables_off_the_device()
    _copy_nothing_without_memory()
    with set_current_vllm_config(config):
        runner = MkvModelRunner(config, torch.device("npu:0"))
        runner.model = _on_meta(vllm_config=config)
        target = set(get_layers_from_vllm_config(config, AttentionLayerBase))
        drafter: Any = getattr(runner, "drafter", None)
        if hasattr(drafter, "_get_model"):
            _replace_everywhere(get_model, _on_meta)
            drafter.model = drafter._get_model()
            both = get_layers_from_vllm_config(config, AttentionLayerBase)
            drafter._draft_attn_layer_names = set(both) - target
    # As executors do once the models are there: backends may ask for other blocks (vLLM 0.30.0).
    current_platform.update_block_size_for_backend(config)
    return runner


def _on_meta(*, vllm_config: VllmConfig, model_config: Any = None, **options: Any) -> Any:
    """In place of vLLM's ``get_model``."""
    import torch
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    model_config = model_config or vllm_config.model_config
    options.pop("load_config", None)
    with set_default_torch_dtype(model_config.dtype), torch.device("meta"):
        return initialize_model(vllm_config=vllm_config, model_config=model_config, **options)


def _replace_everywhere(original: Any, replacement: Any) -> None:
    """Also in the modules that have imported it."""
    name = original.__name__
    for module in list(sys.modules.values()):
        package = getattr(module, "__name__", "").split(".")[0]
        if package in ("vllm", "vllm_ascend") and vars(module).get(name) is original:
            vars(module)[name] = replacement


def _copy_nothing_without_memory() -> None:
    """Layers with experts put counters on the device when they are made (0.30.0rc2)."""
    import torch

    tensors: Any = torch.Tensor
    put = tensors.npu

    @functools.wraps(put)
    def put_what_is_there(tensor: Any, *args: Any, **options: Any) -> Any:
        return tensor if tensor.is_meta else put(tensor, *args, **options)

    tensors.npu = put_what_is_there


def _rotary_tables_where_needed() -> None:
    """Some rotary tables are computed when a model is made: those need memory."""
    import torch
    from vllm.model_executor.layers.rotary_embedding import get_rope

    @functools.wraps(get_rope)
    def with_memory(*args: Any, **options: Any) -> Any:
        try:
            return get_rope(*args, **options)
        except RuntimeError:  # A table without memory is copied, or meets one that has some.
            with torch.device("cpu"):
                return get_rope(*args, **options)

    _replace_everywhere(get_rope, with_memory)


def _keep_tables_off_the_device() -> None:
    """DeepSeek-V4's rotary tables would have 4 GiB, on the platform's device."""
    from vllm_ascend.ops import rope_dsv4

    rope_dsv4.current_platform = SimpleNamespace(device_type="meta")
