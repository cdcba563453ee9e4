"""Frames and records survive however the stream is cut, and what is no frame is refused."""

from __future__ import annotations

import asyncio
import itertools
import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.contract import (
    Begin,
    Broken,
    Capacity,
    Fault,
    Feature,
    Finished,
    FromExecutor,
    Key,
    Loading,
    Logprobs,
    Ready,
    Report,
    Returned,
    Sampling,
    StepSample,
    Stop,
    Submit,
    TextModel,
    ToExecutor,
    TokenLogprob,
    Tokens,
    Work,
)
from executor.wire import Channel, Codec, Connection, Disconnected, Frames, WireError

TO_EXECUTOR: list[ToExecutor] = [
    Begin("gpu-0", "simulated", {"max_seqs": 4, "utilization": None}),
    Work(3, 2048, [Submit("r", 1, [1, 2, 300], 2, 5, Sampling(seed=2**62))], [Key("q", 2)]),
    Work(4, 64),
    Fault("stall", 0.5),
    Stop(),
]
TOLD = Logprobs([TokenLogprob(-0.5, [(3, -0.5)])], [TokenLogprob(-2.0)])
FROM_EXECUTOR: list[FromExecutor] = [
    Loading("weights", 0.5),
    Ready(
        capacity=Capacity(
            model="m",
            device="cpu",
            max_seqs=1,
            max_step_tokens=2,
            kv_tokens=3,
            max_context_tokens=4,
            features=frozenset({Feature.SEED}),
            eos_token_ids=(256,),
        ),
        text=TextModel(kind="bytes", chat_template="é", special_tokens={"bos_token": "<s>"}),
        warmup=[StepSample(0.01, 1, 1, 64, 0, 0)],
    ),
    Report(
        epoch=3,
        sample=StepSample(0.01, 2, 1, 64, 8, 64),
        kv_tokens=72,
        tokens=[
            Tokens("r", 1, 0, [257]),
            Tokens("s", 1, 0, [3], logprobs=TOLD),
        ],
        finished=[Finished("r", 1, "length")],
        released=[Key("q", 2)],
        returned=[Returned("s", 1, "does_not_fit", "too long", True)],
        stalled=[Key("t", 1)],
        utilization=0.4,
        warning="w",
    ),
    Broken("no device", True),
]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


@given(
    payloads=st.lists(st.binary(max_size=40), max_size=8),
    places=st.lists(st.integers(min_value=0, max_value=400), max_size=12),
)
def test_frames_come_out_whole_wherever_the_stream_is_cut(
    payloads: list[bytes], places: list[int]
) -> None:
    stream = b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)
    frames = Frames()
    assert [payload for part in cut(stream, places) for payload in frames.feed(part)] == payloads


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_every_record_arrives_as_it_was_sent_in_pieces_of_any_size(size: int) -> None:
    to_executor: Codec[ToExecutor] = Codec(ToExecutor)
    stream = b"".join(to_executor.encode(message) for message in TO_EXECUTOR)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert [message for part in pieces for message in to_executor.decode(part)] == TO_EXECUTOR

    from_executor: Codec[FromExecutor] = Codec(FromExecutor)
    stream = b"".join(from_executor.encode(message) for message in FROM_EXECUTOR)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert [message for part in pieces for message in from_executor.decode(part)] == FROM_EXECUTOR


def test_a_frame_over_the_limit_is_refused_before_it_has_arrived() -> None:
    with pytest.raises(WireError, match=r"^a frame of 65 bytes was announced, at most 64 are"):
        Frames(max_frame_bytes=64).feed((65).to_bytes(4, "big"))


def test_a_record_over_the_limit_is_not_sent() -> None:
    codec: Codec[FromExecutor] = Codec(FromExecutor, max_frame_bytes=64)
    with pytest.raises(WireError, match=r"^Loading takes 132 bytes, at most 64 are allowed$"):
        codec.encode(Loading("x" * 100))


def test_a_record_of_the_wrong_direction_is_refused() -> None:
    codec: Codec[FromExecutor] = Codec(FromExecutor)
    with pytest.raises(WireError, match="a record could not be read: Invalid value 'stop'"):
        codec.decode(codec.encode(Stop()))


def test_a_channel_says_nothing_yet_then_everything_then_that_the_other_side_is_gone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        parent: Channel[FromExecutor] = Channel(ours, FromExecutor)
        child: Channel[ToExecutor] = Channel(theirs, ToExecutor)
        assert child.receive(0) == []
        for message in TO_EXECUTOR:
            parent.send(message)
        assert child.receive(None) == TO_EXECUTOR
        ours.close()
        with pytest.raises(Disconnected):
            child.receive(None)
        with pytest.raises(Disconnected):
            child.send(Loading("weights"))


class Transport(asyncio.Transport):
    """Remembers what was done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        self.aborted += 1


class Log:
    """A connection, and all that it told."""

    def __init__(self, *, close_at: int | None = None) -> None:
        self.messages: list[FromExecutor] = []
        self.closed: list[Exception | None] = []
        self.transport = Transport()
        self._close_at = close_at
        self.connection: Connection[FromExecutor] = Connection(
            FromExecutor, on_message=self._on_message, on_closed=self.closed.append
        )
        self.connection.connection_made(self.transport)

    def _on_message(self, message: FromExecutor) -> None:
        self.messages.append(message)
        if len(self.messages) == self._close_at:
            self.connection.close()


def frame(*messages: msgspec.Struct) -> bytes:
    codec: Codec[FromExecutor] = Codec(FromExecutor)
    return b"".join(codec.encode(message) for message in messages)


def test_after_close_nothing_is_handed_on_although_it_had_arrived() -> None:
    log = Log(close_at=2)
    log.connection.data_received(frame(Loading("1"), Loading("2"), Loading("3")))
    log.connection.data_received(frame(Loading("4")))
    log.connection.send(Stop())
    assert log.messages == [Loading("1"), Loading("2")]
    assert (log.transport.aborted, log.transport.written) == (1, [])


def test_rubbish_cuts_the_connection_and_is_its_reason() -> None:
    log = Log()
    log.connection.data_received(b"\x00\x00\x00\x01\xc1")
    assert log.transport.aborted == 1
    log.connection.connection_lost(None)
    assert [type(reason) for reason in log.closed] == [WireError]


def test_the_end_of_the_stream_is_told_once_without_an_error() -> None:
    log = Log()
    log.connection.data_received(frame(Loading("1")))
    log.connection.connection_lost(None)
    log.connection.close()
    assert (log.messages, log.closed) == ([Loading("1")], [None])
