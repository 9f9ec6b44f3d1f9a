# SPDX-License-Identifier: Apache-2.0
"""The table at start-up."""

import dataclasses
import json
import re

from mkv_ascend.attention.entry import DeviceGeneration, Environment, LayerRequest
from mkv_ascend.attention.report import LayerRow, layer_rows, render
from mkv_ascend.attention.selection import SelectionOptions, select_backend
from mkv_ascend.config import parse_config
from mkv_ascend.layout.kind import Kind, Role


def request(name: str, role: Role, kind: Kind) -> LayerRequest:
    head_size = 576 if kind is Kind.MLA else 64
    return LayerRequest(name, role, kind, "Attention", "bfloat16", head_size)


REQUESTS = [
    *(request(f"model.layers.{n}.self_attn.attn", Role.TARGET, Kind.MLA) for n in range(3)),
    *(
        request(
            f"draft_model.layers.{n}.self_attn.attn",
            Role.DRAFT,
            Kind.FULL_ATTENTION if n == 5 else Kind.SLIDING_WINDOW,
        )
        for n in range(3, 8)
    ),
]


def rows(kv_groups: dict[str, int] | None = None) -> tuple[LayerRow, ...]:
    config = parse_config({"mkv_ascend": {"attention": {"draft": {"full_attention": "FA3"}}}})
    environment = Environment(DeviceGeneration.A2, module_available=lambda name: True)
    options = SelectionOptions(config.attention)
    choices = [select_backend(request, options, environment) for request in REQUESTS]
    return layer_rows(choices, kv_groups)


def test_target_and_draft_apart_with_folded_layers() -> None:
    lines = render(rows()).splitlines()
    header = ["", "layers", "kind", "backend", "chosen by"]
    assert [re.split(r"\s{2,}", line) for line in lines] == [
        ["Attention backends of the target:"],
        header,
        ["", "model.layers.0-2.self_attn.attn", "mla", "mla", "default (best for mla)"],
        ["Attention backends of the draft:"],
        header,
        [
            "",
            "draft_model.layers.[3-4, 6-7].self_attn.attn",
            "sliding_window",
            "fused_infer_attention",
            "default (best for sliding_window)",
        ],
        [
            "",
            "draft_model.layers.5.self_attn.attn",
            "full_attention",
            "flash_attention_3",
            "option (mkv_ascend.attention.draft.full_attention)",
        ],
    ]


def test_the_group_column_is_there_when_groups_are_known() -> None:
    groups = {REQUESTS[0].name: 0, REQUESTS[1].name: 0, REQUESTS[2].name: 1}
    text = render(rows(groups))
    header, first, second = text.splitlines()[1:4]
    column = header.index("KV group")
    assert first[column:].startswith("0 ")
    assert first.startswith("  model.layers.0-1.")
    assert second[column:].startswith("1 ")
    # Layers that are in no group say so.
    assert text.splitlines()[-1][column:].startswith("- ")


def test_every_layer_is_in_the_table_once() -> None:
    assert [row.name for row in rows()] == [request.name for request in REQUESTS]
    assert "draft" not in render(row for row in rows() if row.role == "target")
    assert render(()) == ""


def test_rows_are_plain_values() -> None:
    plain = [dataclasses.asdict(row) for row in rows({REQUESTS[0].name: 2})]
    assert json.loads(json.dumps(plain)) == plain
    assert plain[0] == {
        "name": "model.layers.0.self_attn.attn",
        "role": "target",
        "kind": "mla",
        "backend": "mla",
        "chosen_by": "default",
        "detail": "best for mla",
        "kv_group": 2,
    }
    assert type(plain[0]["kind"]) is str
