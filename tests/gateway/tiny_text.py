"""A small byte-level BPE tokenizer, trained in a moment, and chat templates as models ship them."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from executor.contract import TextModel

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>")
CORPUS = (
    "the quick brown fox jumps over the lazy dog and runs back to the river for a drink",
    "What is the capital of France? The capital of France is Paris, on the river Seine.",
    "größer, naïve, façade, Übermut; привет мир, как дела? 你好。世界。こんにちは世界 🙂🚌",
)
# SmolLM2-135M-Instruct's own (Apache-2.0).
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Begins with a token that the tokenizer would add as well, and insists on taking turns.
WITH_BOS = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "{% if message['role'] == 'user' %}[INST] {{ message['content'] | trim }} [/INST]"
    "{% else %} {{ message['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)
# Everything else that transformers lends to templates.
WITH_EXTENSIONS = """\
{%- set ns = namespace(count=0) %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{% continue %}{% endif %}
    {%- set ns.count = ns.count + 1 %}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}{{ message | tojson }}{% endgeneration %}
    {%- else %}
        {{- message | tojson(indent=2) }}
    {%- endif %}
{%- endfor %}
{{ ns.count }} {{ strftime_now('%Y') | length }} {{ tools is none }} {{ documents is none }}
{% if add_generation_prompt %}<|im_start|>{% endif %}
"""


def tokenizer() -> Tokenizer:
    """340 tokens; `<s>` is put in front of every text by its post-processor."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", SPECIAL.index("<s>"))]
    )
    return made


def text_model(template: str | None = CHATML) -> TextModel:
    """What a worker would hand over."""
    return TextModel(
        kind="tokenizers",
        tokenizer_json=tokenizer().to_str(),
        chat_template=template,
        special_tokens={"bos_token": "<s>", "eos_token": "<|im_end|>"},
    )
