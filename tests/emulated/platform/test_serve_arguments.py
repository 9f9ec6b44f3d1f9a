# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend check`` reads commands as vLLM's own parser does."""

import json
from enum import Enum

import pytest
from serve_options import described_options, text_of, vllm_parser
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser

from mkv_ascend.adapters.installed import rules
from mkv_ascend.commands.serve_arguments import (
    CommandError,
    options_file,
    options_of,
    read_command,
)

RELEASE = rules().vllm
DRAFT = '{"model": "d", "num_speculative_tokens": 3}'
OBJECTS = {option["name"] for option in options_of(RELEASE) if (option["form"] == "object")}

COMMANDS = [
    "m",
    "m --max-model-len 32k -tp 2 --enforce-eager",
    "m --max_model_len=25.6k --tensor_parallel_size=2",
    "m --max-model-len auto --max-num-batched-tokens 8K",
    "--model m --block-size 128",
    "--block-size 128 --model=m --seed 3",
    "m --enable-prefix-caching --no-enable-chunked-prefill",
    "m --no-enable-prefix-caching",
    f"m --speculative-config '{DRAFT}'",
    f"m -sc '{DRAFT}' --spec-tokens 4",
    "m --speculative-config.model d --speculative-config.num_speculative_tokens 3",
    "m --speculative_config.model=d --additional-config.a.b 1k --additional-config.c+ x,y",
    'm --additional-config \'{"mkv_ascend": {"attention": {"target": "FIA"}}}\'',
    "m --additional-config.mkv_ascend.layout.max_block_size 128",
    "m --attention-backend FLASH_ATTN --kv-cache-dtype fp8 --dtype half",
    "m --gpu-memory-utilization 0.5 --kv-cache-memory-bytes 4G --num-gpu-blocks-override 12",
    "m --served-model-name a b --port 1234 --host 127.0.0.1 --max-num-seqs 4",
    "m --quantization None --enable-lora --max-lora-rank 64 --headless",
    "m -O3 --data-parallel-size 2 -dp 3",
    "m -O 1",
    "m --tensor-parallel 2",
    "m --hf-overrides '{\"a\": 1}' --uvicorn-log-level error",
    'm --kv-transfer-config \'{"kv_connector": "X", "kv_role": "kv_both"}\'',
    'm --kv-transfer-config \'{"kv_connector": "X", "kv_role": "kv_both", "kv_buffer_size": 80m}\'',
]

UNREADABLE = [
    "m --no-such-option",
    "m --max-model-len many",
    "m --kv-cache-dtype int3",
    "m --speculative-config '{model: x}'",
    "m -tp two",
    "m --max-lora-rank 7",
    "m extra",
    "m --gpu-memory-utilization",
    'm --compilation-config \'{"cudagraph_mod": "FULL"}\'',
]


def words_of(command):
    import shlex

    return ["serve", *shlex.split(command)]


def read_by_vllm(words):
    parser = FlexibleArgumentParser()
    ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    values = vars(parser.parse_args(list(words)))
    if values.get("model_tag") is not None:
        values["model"] = values["model_tag"]
    return values


def plain(value):
    return value.name if isinstance(value, Enum) else value


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_given_is_read_alike_and_all_else_is_vllms_default(command):
    words = words_of(command)
    of_vllm, of_nothing = read_by_vllm(words), read_by_vllm(["serve"])
    ours = read_command(["vllm", *words], RELEASE)
    for name, value in ours.items():
        if name not in OBJECTS:
            assert plain(of_vllm[name]) == value, name
    changed = {
        name
        for name, value in of_vllm.items()
        if value != of_nothing[name] and name not in ("model_tag", "subparser")
    }
    assert changed <= set(ours)


@pytest.mark.parametrize("command", UNREADABLE)
def test_what_vllm_cannot_read_is_not_read(command, capsys):
    with pytest.raises(SystemExit) as ended:
        read_by_vllm(words_of(command))
    assert ended.value.code == 2
    with pytest.raises(CommandError):
        read_command(["vllm", *words_of(command)], RELEASE)


def test_a_file_of_options_is_read_alike(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text(
        "tensor-parallel-size: 2\nenforce-eager: true\nenable-lora: false\n"
        "speculative-config:\n  model: d\n  num_speculative_tokens: 3\nserved-model-name: [a, b]\n"
    )
    words = ["serve", "m", "--config", str(file), "-tp", "4"]
    of_vllm, ours = read_by_vllm(words), read_command(["vllm", *words], RELEASE)
    assert ours["tensor_parallel_size"] == 4
    assert {name: of_vllm[name] for name in ours} == ours


@pytest.mark.parametrize(
    ("field", "said"), [("num_speculative_tokns", "num_speculative_tokens"), ("qqq", "among att")]
)
def test_a_field_that_no_draft_has_is_told_as_vllm_would_once_it_is_configured(field, said):
    asked = {"model": "d", field: 3}
    with pytest.raises(Exception, match=field):
        EngineArgs(model="m", speculative_config=asked).create_speculative_config(None, None)
    with pytest.raises(CommandError, match=f"vLLM has no '{field}'.*{said}"):
        read_command(["vllm", "serve", "m", "-sc", json.dumps(asked)], RELEASE)


def test_dashes_in_fields_of_a_draft_are_read_where_vllm_reads_them():
    words = ["serve", "m", "-sc", json.dumps({"num-speculative-tokens": 3})]
    if RELEASE == "0.23":
        with pytest.raises(CommandError, match="did you mean num_speculative_tokens"):
            read_command(words, RELEASE)
    else:
        assert read_command(words, RELEASE)["speculative_config"] == {"num_speculative_tokens": 3}


def test_the_table_is_that_of_the_installed_vllm():
    described = described_options(vllm_parser())
    assert text_of(described, RELEASE) == options_file(RELEASE).read_text()

    def by_name(options):
        return sorted(options, key=lambda option: option["name"])

    assert by_name(options_of(RELEASE)) == by_name(described)
