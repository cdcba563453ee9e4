"""The OpenAI routes: from a request's body to requests at the desk, and back to an answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import hdrs, web

from controller.errors import HeadwayError, InvalidRequest, ModelNotFound, NotReady
from controller.request import Request
from executor.contract import BOUNDLESS
from gateway.answers import Heading, Kind, Usage
from gateway.auth import choose_tier
from gateway.bodies import Body, BodyReader, ChatBody, CompletionBody, read_body
from gateway.deadlines import Deadlines, deadlines
from gateway.forwarding import Forwarded
from gateway.front import Front
from gateway.parameters import clip_seed, wanted_tokens
from gateway.preparing import Prepared, Preparer
from gateway.prompts import prompt_count
from gateway.request_ids import fresh_id, request_id_of
from gateway.responders import Responder, StreamResponder, WholeResponder
from gateway.siblings import Siblings

if TYPE_CHECKING:
    from controller.places import Permit
    from executor.contract import Capacity
    from gateway.contract import Desk

# A guess for the queue's bound, before tokenising.
_BYTES_A_TOKEN = 4


class Asked(msgspec.Struct, frozen=True):
    """One HTTP request as far as it is known before its prompt is looked at."""

    heading: Heading
    body: Body
    raw: bytes
    client: str
    tier: str
    choices: int
    arrival: float
    arrived_at: float
    deadlines: Deadlines


class Completions:
    """Handlers of the routes under `/v1`."""

    def __init__(self, desk: Desk, front: Front, *, preparer: Preparer) -> None:
        self._desk = desk
        self._front = front
        self._preparer = preparer
        self._chats = BodyReader(ChatBody)
        self._texts = BodyReader(CompletionBody)

    async def chat(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        return await self._complete(http, "chat", self._chats)

    async def completion(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        return await self._complete(http, "completion", self._texts)

    async def models(self, http: web.Request) -> web.Response:
        """`GET /v1/models`."""
        self._front.keyring.caller(http.headers.get(hdrs.AUTHORIZATION))
        models = [self._model(name) for name in self._names()]
        return _json({"object": "list", "data": models})

    async def model(self, http: web.Request) -> web.Response:
        """`GET /v1/models/{id}`; an id may contain slashes."""
        self._front.keyring.caller(http.headers.get(hdrs.AUTHORIZATION))
        return _json(self._model(self._served(http.match_info["id"])))

    # --- the life of a request --------------------------------------------------------------

    async def _complete(
        self, http: web.Request, kind: Kind, reader: BodyReader[Any]
    ) -> web.StreamResponse:
        asked = await self._read(http, kind, reader)
        permit = self._reserve(asked)
        try:
            model, capacity = self._desk.model()
            prepared = await self._preparer.prepare(
                asked.body, model, capacity=capacity, raw=asked.raw
            )
            siblings = Siblings(self._desk)
            responder = self._responder(http, asked, prepared, siblings=siblings)
            try:
                self._offer(asked, prepared, permit, responder=responder, siblings=siblings)
                return await responder.respond(http)
            except BaseException as error:
                responder.abandon()
                failed = isinstance(error, HeadwayError)
                siblings.cancel("sibling_failed" if failed else "disconnect")
                raise
        finally:
            self._desk.give_back(permit)

    async def _read(self, http: web.Request, kind: Kind, reader: BodyReader[Any]) -> Asked:
        arrival, arrived_at = self._desk.now(), time.time()
        caller = self._front.keyring.caller(http.headers.get(hdrs.AUTHORIZATION))
        raw = await read_body(http, self._front.settings.max_body_bytes)
        body = reader.read(raw)
        tier = choose_tier(body.service_tier, caller, self._front.settings.tiers)
        plan = self._front.settings.tiers[tier]
        heading = Heading(
            kind=kind,
            id=f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{fresh_id()}",
            created=int(arrived_at),
            model=self._served(body.model),
            service_tier=plan.service_tier,
        )
        return Asked(
            heading=heading,
            body=body,
            raw=raw,
            client=caller.client,
            tier=tier,
            choices=self._choices(body),
            arrival=arrival,
            arrived_at=arrived_at,
            deadlines=deadlines(http.headers, plan, arrival=arrival, streamed=bool(body.stream)),
        )

    def _reserve(self, asked: Asked) -> Permit:
        """Places in the queue, before anything that costs time."""
        wanted = wanted_tokens(asked.body)
        new_tokens = self._front.settings.expected_new_tokens if wanted is None else wanted
        capacity = self._capacity()
        if capacity is not None:
            new_tokens = min(new_tokens, capacity.max_context_tokens)
        prompt_tokens = len(asked.raw) // _BYTES_A_TOKEN * (asked.body.n or 1)
        return self._desk.reserve(
            asked.tier,
            requests=asked.choices,
            tokens=prompt_tokens + new_tokens * asked.choices,
            size=len(asked.raw),
            start_by=asked.deadlines.start_by,
            client=asked.client,
        )

    def _responder(
        self, http: web.Request, asked: Asked, prepared: Prepared | Forwarded, *, siblings: Siblings
    ) -> Responder:
        # An engine that reads text by itself says at the end how long the prompts were.
        known = () if isinstance(prepared, Forwarded) else prepared.prompts
        usage = Usage(sum(len(prompt) for prompt, _ in known))
        if not asked.body.stream:
            return WholeResponder(asked.heading, siblings, usage, choices=asked.choices)
        options = asked.body.stream_options
        return StreamResponder(
            asked.heading,
            siblings,
            usage,
            choices=asked.choices,
            include_usage=bool(options is not None and options.include_usage),
            settings=self._front.settings,
            request_id=request_id_of(http),
        )

    def _offer(
        self,
        asked: Asked,
        prepared: Prepared | Forwarded,
        permit: Permit,
        *,
        responder: Responder,
        siblings: Siblings,
    ) -> None:
        body, sampling = asked.body, prepared.sampling
        asks = prepared.asks if isinstance(prepared, Forwarded) else None
        for index in range(asked.choices):
            prompt, new_tokens = prepared.prompts[index // (body.n or 1)]
            if index:
                seed = clip_seed(prepared.sampling.seed + index)
                sampling = msgspec.structs.replace(sampling, seed=seed)
            request = Request(
                id=asked.heading.id if asked.choices == 1 else f"{asked.heading.id}-{index}",
                tier=asked.tier,
                client=asked.client,
                prompt=prompt,
                max_new_tokens=new_tokens,
                sampling=sampling,
                arrival=asked.arrival,
                arrived_at=asked.arrived_at,
                start_by=asked.deadlines.start_by,
                finish_by=asked.deadlines.finish_by,
                expected_new_tokens=(
                    min(new_tokens, self._front.settings.expected_new_tokens)
                    if prepared.unbounded
                    else None
                ),
                ask=None if asks is None else asks[index],
                unseen=asks is not None and not body.stream,
            )
            siblings.add(request.id)
            self._desk.offer(request, permit, responder.sink(request.id, index, prepared))

    # --- checks -----------------------------------------------------------------------------

    def _choices(self, body: Body) -> int:
        choices = (body.n or 1) * prompt_count(body)
        if choices > self._front.settings.max_choices:
            raise InvalidRequest(
                f"n: {body.n or 1} for each of {prompt_count(body)} prompts are {choices} "
                f"completions, at most {self._front.settings.max_choices} are served together",
                param="n" if (body.n or 1) > 1 else "prompt",
            )
        return choices

    def _names(self) -> tuple[str, ...]:
        """What is served: as configured, else as the engine calls it, once that is known."""
        names, capacity = self._front.settings.models, self._capacity()
        return names if names or capacity is None else (capacity.model,)

    def _served(self, name: str | None) -> str:
        models = self._names()
        if not models:
            # Nobody is served yet, and whoever asks is told so when places are reserved.
            return name or ""
        if name is None:
            return models[0]
        if name not in models:
            raise ModelNotFound(
                f"model {name!r} is not served here; use {' or '.join(models)}", param="model"
            )
        return name

    def _model(self, name: str) -> dict[str, Any]:
        record: dict[str, Any] = {
            "id": name,
            "object": "model",
            "created": self._front.settings.created,
            "owned_by": "headway",
        }
        capacity = self._capacity()
        if capacity is not None and capacity.max_context_tokens < BOUNDLESS:
            record["max_model_len"] = min(capacity.max_context_tokens, capacity.kv_tokens)
        return record

    def _capacity(self) -> Capacity | None:
        """None while the model still loads: clients list models before that."""
        try:
            return self._desk.model()[1]
        except NotReady:
            return None


def _json(record: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(record), content_type="application/json")
