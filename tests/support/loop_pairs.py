# SPDX-License-Identifier: Apache-2.0
"""The pairs of models that plain loops judge."""

# Target, draft, method, K.
PAIRS = [
    ("gemma3", "gemma3_draft", "draft_model", 3),
    ("gpt_oss", "gpt_oss_draft", "draft_model", 4),
    ("gemma3_alternating", "gemma3_alternating_perturbed", "draft_model", 5),
    ("llama_target", "deepseek_v2_draft", "draft_model", 3),
    ("deepseek_v2_target", "deepseek_v2_draft", "draft_model", 2),
    ("llama_target", "llama_eagle", "eagle", 2),
    ("llama_target", "llama_eagle3", "eagle3", 3),
    ("gpt_oss", "gpt_oss_eagle3", "eagle3", 3),
    ("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", 3),
    ("gpt_oss", "gpt_oss_dflash", "dflash", 3),
    ("granite4", "granite4_dflash", "dflash", 3),
    ("lfm2", "lfm2_dflash", "dflash", 3),
    ("qwen3_next", "llama_draft", "draft_model", 4),
    ("qwen3_next_mtp", "qwen3_next_mtp", "mtp", 3),
]
