"""A random Llama of a few megabytes, saved as a model folder; run as a script with the folder as its argument."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_VOCABULARY = 512


def save(folder: Path, seed: int = 0) -> None:
    """Save the model with random weights of this seed, large enough to make every token depend on all before it.

    Its words are ``w0`` to ``w511``.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{token}": token for token in range(_VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


if __name__ == "__main__":
    save(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
