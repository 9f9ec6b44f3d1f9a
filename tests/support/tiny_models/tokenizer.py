# SPDX-License-Identifier: Apache-2.0
"""A byte tokenizer in the format of the ``tokenizers`` library: token id = byte value.

Any UTF-8 text survives encoding and decoding unchanged. Text that spells a special token, such as
``<eos>``, is encoded as its bytes: special tokens only come from ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

NUM_BYTES = 256
BOS_TOKEN_ID = 256
EOS_TOKEN_ID = 257
PAD_TOKEN_ID = 258
# The vocabulary is filled up to a multiple of 8, so that tensor parallelism divides it evenly.
SPECIAL_TOKENS: tuple[str, ...] = (
    "<bos>",
    "<eos>",
    "<pad>",
    *(f"<unused{index}>" for index in range(5)),
)
VOCABULARY_SIZE = NUM_BYTES + len(SPECIAL_TOKENS)


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in a ByteLevel vocabulary.

    This is the table of GPT-2's byte-level tokenizers that ``tokenizers``' ``ByteLevel`` uses:
    printable Latin-1 bytes stand for themselves, all others follow from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(NUM_BYTES)]


def build_tokenizer(max_length: int) -> PreTrainedTokenizerFast:
    """A fast tokenizer that puts ``<bos>`` first and has ``VOCABULARY_SIZE`` tokens.

    ``save_pretrained`` of the result writes files that ``AutoTokenizer.from_pretrained`` loads
    without a network. ``max_length`` (tokens) is only announced, nothing is cut off.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {character: byte for byte, character in enumerate(_byte_characters())}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A",
        pair="<bos> $A <bos> $B",
        special_tokens=[("<bos>", BOS_TOKEN_ID)],
    )
    options: dict[str, Any] = {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
        "padding_side": "left",
    }
    return PreTrainedTokenizerFast(tokenizer_object=backend, **options)
