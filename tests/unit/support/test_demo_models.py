# SPDX-License-Identifier: Apache-2.0
"""The models that the demo serves tell their stories right, by Hugging Face."""

import json
import random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from emulated_npu.example_models import DRAFT, FOLDER, NAMES, TARGET, example_model, stories

MIB = 2**20


def tell(name, question):
    """The greedy answer of the model ``name`` in bfloat16."""
    folder = example_model(name)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    messages = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, max_new_tokens=160, do_sample=False)[0]
    answer = output[inputs["input_ids"].shape[1] :].tolist()
    assert answer[-1] == tokenizer.eos_token_id
    return tokenizer.decode(answer[:-1])


def test_the_target_tells_a_story_of_what_the_question_names():
    # The likeliest choice of each sentence is the greedy answer.
    always_first = random.Random()
    always_first.random = lambda: 0.0
    for colour, thing in (("yellow", "boat"), ("silver", "drum")):
        told = stories.tell("Clara", "bear", colour, thing, "Greta", always_first)
        assert tell(TARGET, told.question) == told.answer


def test_the_draft_guesses_a_part_of_it():
    (question,) = stories.questions(1)
    answers = [tell(name, question).split() for name in (TARGET, DRAFT)]
    same = sum(one == other for one, other in zip(*answers, strict=False))
    # It would show nothing if all were accepted, or next to nothing.
    assert 0.5 < same / len(answers[0]) < 1


def test_checkpoints_are_small_and_in_bfloat16():
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8 * MIB
    for name in NAMES:
        config = json.loads((example_model(name) / "config.json").read_text())
        assert config["dtype"] == "bfloat16"
