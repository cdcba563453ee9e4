"""What crosses the line between the daemon and an executor: plain records and one protocol.

Everything here is data. A message travels as msgpack (`msgspec`), length-prefixed, over one
connection per incarnation of the executor; see `executor.wire`. Times are seconds, lengths are
tokens. The module imports nothing of its siblings, so every package may import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

import msgspec

FinishReason = Literal["stop", "length"]

# The value of `model` in a configuration that stands for the demo's model.
DEMO_MODEL = "demo"

# Tokens of one sequence where nobody says how many there may be: more than any model takes.
BOUNDLESS = 2**24


class Feature(StrEnum):
    """What an executor can do with a request; a request that needs more is refused with a 400.

    `echo` is about the log-probabilities of a prompt; its text can be had anywhere.
    """

    TEMPERATURE = "temperature"
    TOP_P = "top_p"
    TOP_K = "top_k"
    SEED = "seed"
    MIN_TOKENS = "min_tokens"
    IGNORE_EOS = "ignore_eos"
    STOP_TOKEN_IDS = "stop_token_ids"
    MIN_P = "min_p"
    PENALTIES = "penalties"
    LOGPROBS = "logprobs"
    LOGIT_BIAS = "logit_bias"
    ECHO = "echo"


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What an executor is and what it can do, told once, when it is ready.

    `max_seqs` seats, `max_step_tokens` tokens in one step, `kv_tokens` tokens of KV memory for all
    sequences together, `max_context_tokens` prompt plus output of one sequence. `tells_prefill`:
    its samples come with the steps, so that they say how far the prompts under way are; else a
    prompt is known to be done when its first token comes.
    """

    model: str
    device: str
    max_seqs: int
    max_step_tokens: int
    kv_tokens: int
    max_context_tokens: int
    runs_to_completion: bool = False
    splits_prefill: bool = True
    can_preempt: bool = True
    can_resume: bool = True
    reports_kv: bool = True
    tells_prefill: bool = True
    features: frozenset[Feature] = frozenset()
    eos_token_ids: tuple[int, ...] = ()


class TextModel(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway needs to speak the model's language without importing torch.

    `kind` "tokenizers": `tokenizer_json` is the content of a `tokenizer.json`. `kind` "bytes": one
    token a UTF-8 byte (id = byte value), 256 ends the text. `kind` "engine": it reads and writes
    text by itself, and gets what was asked for as it is (`Submit.ask`). `special_tokens`
    (`bos_token`, `eos_token`, ...) are the variables that chat templates read. `chat_template` is
    None for a base model.
    """

    kind: Literal["tokenizers", "bytes", "engine"]
    tokenizer_json: str = ""
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = {}


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """How the next token of one sequence is chosen. `temperature` 0 is argmax; `top_k` 0 is off.

    In this order: `logit_bias` is added by id; `repetition_penalty` divides a positive logit, and
    multiplies a negative one, of every token in the prompt or generated; `frequency_penalty` is
    taken off once for each time that a token was generated, `presence_penalty` once if it was at
    all; then temperature; then whoever is less likely than `min_p` times the likeliest is left out,
    then `top_k`, then `top_p`.

    `logprobs` asks for the log-probability of each token and of so many likeliest ones beside it
    (None: for none), `prompt_logprobs` for those of the prompt's tokens too.

    Noise is a function of (`seed`, position of the token in the completion), so that a sequence
    that was given back and submitted again continues as it would have.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_p: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: bool = False


class Key(msgspec.Struct, frozen=True, array_like=True):
    """One attempt at one request. A message that carries an attempt of the past is ignored."""

    request_id: str
    attempt: int


class Ask(msgspec.Struct, frozen=True):
    """What a client asked for, as an engine behind HTTP takes it: a path below its address, and the
    fields of the body by name, each as the JSON that the client wrote. It never leaves the daemon.
    """

    path: str
    body: dict[str, msgspec.Raw]


class Submit(msgspec.Struct, frozen=True, array_like=True):
    """Run this: `tokens` is the prompt and, after a resume, what was generated already.

    `tokens[:prompt_length]` is the client's prompt, the rest counts as completion: the next token
    has index `len(tokens) - prompt_length`. `max_new_tokens` is what may still be generated. Of the
    prompts in prefill those of higher `priority` have the tokens of a step first. An engine that
    reads text by itself gets an `ask` and no tokens; how long the prompt is is a guess then.
    """

    request_id: str
    attempt: int
    tokens: list[int]
    prompt_length: int
    max_new_tokens: int
    sampling: Sampling
    priority: int = 0
    ask: Ask | None = None


class Work(msgspec.Struct, frozen=True, tag="work"):
    """Daemon to executor: what to begin, what to let go, and the limits from the next step on.

    The executor starts everything in `submit` at once: the seats were counted by the daemon.
    `wait`: somebody waits for what the next steps say, so give the answer to each a moment.
    """

    epoch: int
    max_batch_tokens: int
    submit: list[Submit] = []
    release: list[Key] = []
    wait: bool = False


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Daemon to executor: end the process after the current step."""


class Fault(msgspec.Struct, frozen=True, tag="fault"):
    """Daemon to a simulated executor: misbehave, for tests and drills.

    `stall`: no step for `seconds`; `fail`: the next step raises; `oom`: the next step runs out of
    memory; `exit`: the process ends at once.
    """

    kind: Literal["stall", "fail", "oom", "exit"]
    seconds: float = 0.0


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """Executor to daemon, before it is ready: what it is doing, and how far (0..1) if known."""

    stage: str
    fraction: float | None = None


class StepSample(msgspec.Struct, frozen=True, array_like=True):
    """What one step held and how long it took: the observation that the step model learns from.

    `sequences` rows in the step, `context_tokens` their KV read, `prefill_tokens` prompt tokens
    computed, `prefill_squares` the sum over prompts of the square of those, `decodes` the rows
    that decoded one token.
    """

    duration_s: float
    sequences: int
    decodes: int
    context_tokens: int
    prefill_tokens: int
    prefill_squares: int


class Ready(msgspec.Struct, frozen=True, tag="ready", kw_only=True):
    """Executor to daemon: warmed up and able to take work. `warmup` is the step model's prior."""

    capacity: Capacity
    text: TextModel
    warmup: list[StepSample] = []


class Said(msgspec.Struct, frozen=True):
    """What an engine wrote in one event of its stream: the fields of its choice by name (none where
    it had none), and those of the usage, each as the JSON that it wrote. `begins`: it is the first
    of its attempt, and what was said in another one counts no more."""

    choice: dict[str, msgspec.Raw] = {}
    usage: dict[str, msgspec.Raw] = {}
    begins: bool = False


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """How likely a token was: the natural logarithm of its probability as the model has it, before
    temperature and every other rule. `top` are the ids and values of the likeliest, in order."""

    logprob: float
    top: list[tuple[int, float]] = []


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of the tokens that they come with, one each.

    `prompt`: with the first token of a completion, those of its prompt from the second token on
    (nothing comes before the first one), where they were asked for.
    """

    tokens: list[TokenLogprob]
    prompt: list[TokenLogprob] = []


class Tokens(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one attempt; `index` is the place of the first one in the completion.

    An end-of-sequence token is part of `ids` (it was generated and is counted); the text skips it.
    An engine that writes text by itself tells what it `said`; its `ids` only count (all are 0), and
    there may be none. `logprobs` where the request asked for them.
    """

    request_id: str
    attempt: int
    index: int
    ids: list[int]
    logprobs: Logprobs | None = None
    said: list[Said] = []


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """This attempt is over and its seat is free."""

    request_id: str
    attempt: int
    reason: FinishReason


class Refusal(msgspec.Struct, frozen=True):
    """An engine's own answer to a request that it does not take: HTTP status, and OpenAI's error
    object."""

    status: int
    message: str
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None


class Returned(msgspec.Struct, frozen=True, array_like=True):
    """This attempt was given back unfinished and its seat is free; tokens already sent count.

    `fatal` says that this very request can never run here (it would fail again), so that it fails
    instead of being submitted again, with the engine's own words where there is a `refusal`.
    `alone`: whoever ran beside it has nothing to do with it. `unavailable` is nobody's fault: there
    was no room for it where it was thought to be. Where memory ran out for a whole step, everything
    comes back in one report without a sample, and is tried again in halves; where others went on,
    the sample is theirs.
    """

    request_id: str
    attempt: int
    reason: Literal["error", "out_of_memory", "preempted", "does_not_fit", "refused", "unavailable"]
    detail: str = ""
    fatal: bool = False
    alone: bool = False
    refusal: Refusal | None = None


class PromptLength(msgspec.Struct, frozen=True, array_like=True):
    """How many tokens the prompt of an attempt really has, where that was a guess."""

    request_id: str
    attempt: int
    tokens: int


class Report(msgspec.Struct, frozen=True, tag="report", kw_only=True):
    """Executor to daemon, one a step (also when idle, to acknowledge releases; then `steps` is 0).

    `epoch` is the one in force in that step. `kv_tokens` counts what requests hold (cached prefix
    blocks are free). `stalled` are running sequences that stood still for want of KV. `steps` = k:
    k equal steps taken as one by a simulator, `sample.duration_s` then is that of all of them.
    `utilization` (0..1) is a simulated device's own figure, None for a real one. `prompts` are
    lengths that have become known, and `paused` counts sequences, nobody knows whose, that an
    engine had to stop for want of KV.
    """

    epoch: int
    steps: int = 1
    sample: StepSample | None = None
    kv_tokens: int | None = None
    tokens: list[Tokens] = []
    finished: list[Finished] = []
    released: list[Key] = []
    returned: list[Returned] = []
    stalled: list[Key] = []
    prompts: list[PromptLength] = []
    paused: int = 0
    utilization: float | None = None
    warning: str = ""


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """Executor to daemon, last words: why the process ends. `fatal`: a restart cannot help."""

    error: str
    fatal: bool = False


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Daemon to executor, first words: which executor to be and how.

    `kind` is a row of the table in `executor.worker`; `settings` are the fields of that kind's
    settings record (`SimulatedSettings`, `ContinuousSettings`, `PaddedSettings`).
    """

    name: str
    kind: str
    settings: dict[str, Any]


class SimulatedSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An executor that computes nothing: it takes the time that a step model says.

    `a..e`, `c_above`, `knee`: see `StepEstimate` in `policies.contract` (seconds). `jitter` is the
    relative standard deviation of a step's time. `utilization` is what the device claims: a fixed
    fraction, "model" (rows over seats), or None (it has no such counter). A completion is
    `output_tokens` long (None: until `max_new_tokens`) and its bytes are drawn from `seed`. Its
    memory really ends at `fails_above_tokens` (0: it does not), whatever `kv_tokens` claims: a step
    after which more would be held fails.
    """

    model: str = "simulated"
    max_seqs: int = 64
    max_step_tokens: int = 8192
    kv_tokens: int = 65536
    max_context_tokens: int = 8192
    runs_to_completion: bool = False
    splits_prefill: bool = True
    a_s: float = 0.0
    b_s: float = 0.0
    c_s: float = 0.0
    c_above_s: float = 0.0
    knee: int = 1_000_000
    d_s: float = 0.0
    e_s: float = 0.0
    jitter: float = 0.0
    load_s: float = 0.0
    utilization: float | Literal["model"] | None = None
    output_tokens: int | None = None
    fails_above_tokens: int = 0
    seed: int = 0


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every executor is told that runs a causal language model from a folder.

    `threads` 0 is every core but one; `max_context_tokens` 0 is the model's own maximum.
    """

    model: str
    served_name: str
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    weights: Literal["full", "8bit", "4bit"] = "full"
    trust_remote_code: bool = False
    threads: int = 0
    max_seqs: int = 64
    max_step_tokens: int = 2048
    max_context_tokens: int = 0
    warmup_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)


class ContinuousSettings(ModelSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model run by transformers' continuous batching.

    The KV cache has `num_blocks` blocks of `block_size` tokens, or `kv_memory` bytes, or
    `kv_fraction` of the device's free memory; 0, None, None: what is usual there. `cpu_offload`
    bytes of the machine's memory hold the KV of sequences that a full GPU has to put aside.
    `attention` "auto" is our own where the model allows it.
    """

    attention: Literal["auto", "sdpa", "eager", "flash_attention_2", "flash_attention_3"] = "auto"
    num_blocks: int = 0
    kv_memory: int | None = None
    kv_fraction: float | None = None
    cpu_offload: int = 0
    block_size: int = 32
    prefix_sharing: bool = True


class PaddedSettings(ModelSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model run in batches that are begun and ended together.

    `kv_tokens` 0 is what fits into free memory, counted with the padding. `leave`: a row that is
    done leaves the computation at once (`early`), or is computed on, and its end told, when the
    longest is done (`together`).
    """

    kv_tokens: int = 0
    leave: Literal["early", "together"] = "early"


ToExecutor = Begin | Work | Stop | Fault
FromExecutor = Loading | Ready | Report | Broken
