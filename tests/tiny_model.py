"""A language model of a hundred thousand random weights, built in a moment, the same every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CORPUS = (
    "the quick brown fox jumps over the lazy dog and runs back to the river for a drink",
    "what is the capital of France? The capital of France is Paris, on the river Seine.",
    "hello there, how are you today? I am fine, thank you; and you? 0123456789",
    "größer, naïve, façade, Übermut; привет мир, как дела? 你好。世界。こんにちは世界 🙂🚌",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 384


def build(folder: Path) -> Path:
    """Write a tiny Llama (float32), its byte-level BPE tokenizer and chat template to `folder`.

    End of text is `<|im_end|>` (id 2). Weights are wide enough that greedy text wanders and the
    first two logits seldom tie. Answers the folder, which is made if need be.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    from_parts: Any = PreTrainedTokenizerFast  # its constructor is not typed
    fast = from_parts(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<|im_end|>",
        chat_template=CHAT_TEMPLATE,
    )
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder
