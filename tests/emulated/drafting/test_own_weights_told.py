# SPDX-License-Identifier: Apache-2.0
"""An engine says which weights of an MTP draft's own checkpoint it does not use."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import engine
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

TARGET = "deepseek_v3_mtp"


@pytest.mark.host("0.23", cases=["the target's-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["the target's-v2"])
@each_runner
@pytest.mark.parametrize("own", [True, False], ids=["own", "the target's"])
def test_embeddings_of_another_checkpoint(own, runner, tmp_path):
    trained, folder = model_directory(TARGET), tmp_path / "another"
    shutil.copytree(trained, folder)
    if own:
        file = folder / "model.safetensors"
        weights = load_file(file)
        for name in weights:
            if name.endswith("embed_tokens.weight"):
                weights[name] += torch.randn_like(weights[name])
        save_file(weights, file, metadata={"format": "pt"})
    case = engine.Scenario(
        model=str(trained),
        draft=str(folder),
        speculative={"method": "mtp"},
        record_drafts=False,
        prompts=[[5, 6, 7]],
        max_tokens=2,
        environment=runner,
    )
    told = (
        f"The draft in {folder} has its own embeddings, unlike the target's" in engine.run(case).log
    )
    assert told == own
