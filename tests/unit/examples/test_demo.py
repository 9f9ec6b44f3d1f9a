# SPDX-License-Identifier: Apache-2.0
"""The demo's verdict, refusals and tables, without a server."""

import argparse
import contextlib
import importlib.metadata
import io
import os
import pathlib
import subprocess

import pytest
from rich.console import Console

from emulated_npu.example_models import TARGET, example_model
from examples.demo import __main__ as demo
from examples.demo import client as demo_client
from examples.demo.client import Completion
from mkv_ascend.commands.command_words import positive
from tests.support import hosts


def console():
    return Console(file=io.StringIO(), width=140, highlight=False)


def completions(*tokens):
    return [Completion("text", tuple(ids)) for ids in tokens]


def test_the_same_tokens_give_status_0():
    out = console()
    same = completions([1, 2, 3], [4, 5])
    assert demo._verdict(same, completions([1, 2, 3], [4, 5]), out) == 0
    assert "every token is the same: 5 tokens in 2 completions" in out.file.getvalue()


@pytest.mark.parametrize(
    ("tokens", "place"), [([1, 9, 3], 1), ([1, 2], 2), ([1, 2, 3, 4], 3)], ids=str
)
def test_a_different_or_missing_token_gives_status_1_and_its_place(tokens, place):
    out = console()
    alone = completions([1, 2, 3], [4, 5])
    assert demo._verdict(completions(tokens, [4, 5]), alone, out) == demo.EXIT_NOT_SHOWN
    assert f"question 1: different from token {place} on" in out.file.getvalue()
    assert "1 of 2 completions differ" in out.file.getvalue()


def test_no_tokens_at_all_are_no_success():
    assert demo._verdict(completions([]), completions([]), console()) == demo.EXIT_NOT_SHOWN


@pytest.mark.parametrize("text", ["0", "-1", "three", "1.5"])
def test_counts_are_whole_numbers_from_one(text):
    with pytest.raises(argparse.ArgumentTypeError, match="allowed"):
        positive(text)


def run(*arguments):
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return demo.run(parser.parse_args(arguments))


def test_a_model_that_does_not_exist_is_refused_with_those_that_do(capsys, monkeypatch):
    monkeypatch.setattr(demo, "_environment", lambda *_: {})
    assert run("--target", "no_such_model") == demo.EXIT_FAILED
    printed = capsys.readouterr().out
    assert "'no_such_model' is neither a checkpoint directory nor an example model" in printed
    assert "story_target, story_draft" in printed


def test_a_bad_variable_is_refused_with_its_name(capsys, monkeypatch):
    monkeypatch.setenv("EMULATED_NPU_DEVICES", "many")
    assert run() == demo.EXIT_FAILED
    assert "EMULATED_NPU_DEVICES is 'many'" in capsys.readouterr().out


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), OSError("disk full")])
def test_an_error_on_the_way_is_one_line(capsys, monkeypatch, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(demo, "_run", fail)
    assert run() == demo.EXIT_FAILED
    assert f"demo failed: {type(error).__name__}: {error}" in capsys.readouterr().out


def test_what_looks_like_markup_in_a_log_is_printed_as_it_is(capsys, monkeypatch):
    log = "[rank0] in [/usr/lib/python] [bold]"

    def fail(*arguments):
        raise demo.DemoError(log)

    monkeypatch.setattr(demo, "_run", fail)
    assert run() == demo.EXIT_FAILED
    assert log in capsys.readouterr().out


def test_the_targets_backend_is_handed_to_the_server():
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    chosen = demo._options(parser.parse_args(["--target-backend", "mla"]), "target")
    assert chosen[chosen.index("--additional-config") + 1] == (
        '{"mkv_ascend": {"attention": {"target": "mla"}}}'
    )
    assert "--additional-config" not in demo._options(parser.parse_args([]), "target")


class FakeServer:
    """Answers of a server whose draft was replayed so often."""

    log = pathlib.Path("server.log")

    def __init__(self, replays):
        self.replays = replays

    def call_workers(self, method):
        answers = {
            "attention_layers": [],
            "draft_replays": {"captured": [1, 2], "replays": self.replays},
        }
        return [answers[method]]

    def metrics(self):
        return {"vllm:spec_decode_num_drafts_total": 9.0}


@pytest.fixture
def servers(monkeypatch):
    """Runs the demo with servers that replay so often; (status, options of each)."""

    def run_with(replays, *arguments):
        started = []

        def start(options, log, environment):
            started.append(options)
            return contextlib.nullcontext(FakeServer(replays))

        monkeypatch.setattr(demo, "_environment", lambda *_: {})
        monkeypatch.setattr(demo, "started", start)
        monkeypatch.setattr(demo, "_wait", lambda server, console: None)
        monkeypatch.setattr(demo, "_complete", lambda *rest: completions([1, 2]))
        return run(*arguments), started

    return run_with


def test_proposals_are_replayed_from_graphs_by_default(servers, capsys):
    status, started = servers(7)
    assert status == 0
    assert "7 proposals were replayed from ACL graphs" in capsys.readouterr().out
    assert [options[0] for options in started] == [str(example_model(TARGET))] * 2
    assert ["--speculative-config" in options for options in started] == [True, False]
    assert not any("--enforce-eager" in options for options in started)


def test_a_draft_that_is_not_replayed_gives_status_1_and_where_to_look(servers, capsys):
    status, _ = servers(0)
    assert status == demo.EXIT_NOT_SHOWN
    printed = capsys.readouterr().out
    assert "no proposal was replayed from a graph" in printed
    assert "'The draft runs eagerly'" in printed


def test_without_graphs_both_servers_are_eager_and_nothing_need_be_replayed(servers):
    status, started = servers(0, "--enforce-eager")
    assert status == 0
    assert all("--enforce-eager" in options for options in started)


def test_the_host_and_its_model_runner_stand_first(servers, capsys):
    versions = {name: importlib.metadata.version(name) for name in ("vllm", "vllm-ascend")}
    servers(3)
    # The title is a rule of its own.
    assert capsys.readouterr().out.splitlines()[1] == (
        f"vllm-ascend {versions['vllm-ascend']} with vLLM {versions['vllm']}, model runner V1"
    )
    assert demo._host({demo.RUNNER: "1"}).endswith("model runner V2")


@pytest.mark.parametrize(
    ("host", "told"), [("0.30", ["HOST=0.30 of the environment is ignored"]), ("a-machine", [])]
)
def test_a_host_in_the_environment_is_said_to_be_ignored(host, told):
    """csh sets HOST to the machine's name, which nobody means."""
    shown = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "port"],
        cwd=pathlib.Path(__file__).resolve().parents[3],
        env={"PATH": os.environ["PATH"], "HOST": host},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [line.partition(",")[0] for line in shown.splitlines() if "ignored" in line] == told
    assert "--host '0.23'" in shown


@hosts.only_on("vllm_ascend_0_23", "0.30.0rc2 has model runner V2")
def test_a_model_runner_that_the_host_lacks_is_refused(capsys):
    assert run("--runner", "v2") == demo.EXIT_FAILED
    printed = capsys.readouterr().out
    assert "has v1" in printed
    assert "HOST=0.30" in printed


METRICS = {
    "vllm:spec_decode_num_drafts_total": 40.0,
    "vllm:spec_decode_num_accepted_tokens_total": 55.0,
    "vllm:spec_decode_num_accepted_tokens_per_pos_total[0]": 30.0,
    "vllm:spec_decode_num_accepted_tokens_per_pos_total[1]": 15.0,
    "vllm:spec_decode_num_accepted_tokens_per_pos_total[2]": 10.0,
}


def text_of(table, width=160):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def title_of(table):
    return str(table.title)


def test_acceptance_counts_each_position_and_one_token_of_the_target_itself():
    measured = demo_client.acceptance(METRICS)
    assert measured.proposals == 40
    assert measured.accepted == (30, 15, 10)
    assert measured.mean_length == pytest.approx(1 + 55 / 40)


@pytest.mark.parametrize("metrics", [{}, {"vllm:spec_decode_num_drafts_total": 0.0}])
def test_without_a_proposal_the_mean_length_is_that_of_the_target_alone(metrics):
    measured = demo_client.acceptance(metrics)
    assert (measured.proposals, measured.accepted, measured.mean_length) == (0, (), 1.0)
    assert title_of(demo_client.acceptance_table(metrics)).endswith("acceptance length 1.00")


def test_the_acceptance_table_counts_positions_from_one():
    table = demo_client.acceptance_table(METRICS)
    assert title_of(table) == "Acceptance: 40 proposals, mean acceptance length 2.38"
    text = text_of(table)
    rows = [line.split() for line in text.splitlines() if "%" in line]
    assert [(row[1], row[3], row[5]) for row in rows] == [
        ("1", "30", "75.0%"),
        ("2", "15", "37.5%"),
        ("3", "10", "25.0%"),
    ]


def test_replays_are_counted_against_the_proposals():
    text = demo_client.replays_text({"captured": [1, 2], "replays": 38}, METRICS)
    assert text.startswith("38 proposals were replayed from ACL graphs")
    assert "The target verified 40:" in text
    assert "for each of 1, 2 requests" in text
    eager = demo_client.replays_text({"captured": [], "replays": 0}, METRICS)
    assert eager == "The draft has no ACL graphs: its passes ran eagerly."


def row(name, **fields):
    return {
        "name": name,
        "role": "target",
        "kind": "mla",
        "backend": "mla",
        "kv_group": 0,
        "chosen_by": "default",
        "detail": "best for mla",
        **fields,
    }


def test_layers_that_are_alike_share_a_line_and_roles_do_not():
    draft = {"role": "draft", "kind": "full_attention", "backend": "fused_infer_attention"}
    rows = [row(f"model.layers.{index}.self_attn.attn") for index in range(3)]
    rows.append(row("draft_model.model.layers.0.self_attn.attn", kv_group=None, **draft))
    lines = [line for line in text_of(demo_client.backend_table(rows)).splitlines() if "0" in line]
    assert len(lines) == 2
    assert "0-2" in lines[0]
    assert "target" in lines[0]
    assert "fused_infer_attention" in lines[1]
    assert "draft" in lines[1]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_terminal_is_too_narrow_for_the_name_of_a_backend(width):
    rows = [row("model.layers.0.self_attn.attn", backend="fused_infer_attention", kind="mla")]
    text = text_of(demo_client.backend_table(rows), width)
    assert "fused_infer_attention" in text
    assert "…" not in text
