"""Long conversations, a model server that answers and summarises, and readers of the window that it was shown.

It knows the Chat Completions wire and how a summary is asked for, and no scenario. Invariant: the same numbers give the
same conversation, and every request is kept with its bytes.
"""

import asyncio
import base64
import functools
import json
import random
import re
import struct
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from antiphon.context.sealed_window import HEADING
from antiphon.context.summary_texts import DEFAULT_TEXTS, RETAIN_KEY
from antiphon.engine.counting import TokenCounter
from antiphon.engine.tokenizers import load_tokenizer
from tests.fake_upstream import MODEL, FakeUpstream, Reply, Request, make_json
from tests.scenarios.houses import WAIT_S, Generation, House, open_house, write

Item: TypeAlias = dict[str, Any]
#: How a summary is given: as it was asked for, as prose whatever was asked, or as nothing that is one.
Form: TypeAlias = Literal["asked", "prose", "empty", "broken"]

TRIGGER: Item = {"type": "compaction_trigger"}
SUMMARY = "SUMMARY-TEXT: the importer is being ported; parser done, writer open."
ANSWER = "I will go on."
#: A token to this model server, about as tokenizers have it; what a message costs beside its text, and an image.
TOKEN = re.compile(r"[^\W\d_]{1,8}|\d{1,3}|[^\w\s]|_")
MESSAGE_TOKENS = 4
IMAGE_TOKENS = 85
_TEXT = (
    "the parser reads each line of a file and keeps what it needs while other parts wait for their turn in the queue "
    "so that no work is done twice and every result can be found again by its name or by the place where it was made"
)
_WORDS = tuple(_TEXT.split())
#: Its table takes longer to read than a whole scenario, so that all of them share one.
_load_tokenizer = functools.cache(load_tokenizer)


# What a client holds


def user(text: str | list[dict[str, Any]], **fields: Any) -> Item:
    """A user's message."""
    return {"type": "message", "role": "user", "content": text, **fields}


def system(text: str, role: str = "developer") -> Item:
    """A message of the client's own."""
    return {"type": "message", "role": role, "content": text}


def said(text: str) -> Item:
    """A message of the model's."""
    return {"type": "message", "role": "assistant", "content": text}


def call(number: int, name: str = "read_file", **arguments: Any) -> Item:
    """A call, known by its number; its id is `fc_` and its call id `call_` with that."""
    told = json.dumps(arguments or {"path": f"src/part_{number}.py"})
    ids = {"id": f"fc_{number}", "call_id": f"call_{number}"}
    return {"type": "function_call", **ids, "name": name, "arguments": told}


def result(number: int, output: str | list[dict[str, Any]]) -> Item:
    """What that call gave back; its id is `fc_` with the number and an `r`."""
    return {
        "type": "function_call_output",
        "id": f"fc_{number}r",
        "call_id": f"call_{number}",
        "output": output,
    }


def pair(number: int, output: str, name: str = "read_file", **arguments: Any) -> list[Item]:
    """A call and its result."""
    return [call(number, name, **arguments), result(number, output)]


def prose(seed: int, tokens: int) -> str:
    """Text of about so many tokens; the same seed gives the same text."""
    return " ".join(random.Random(seed).choices(_WORDS, k=tokens))


def work(rounds: int, tokens: int = 200, *, first: int = 1) -> list[Item]:
    """So many steps of reading; each result begins with its listing's name, and has a path in the middle."""
    items: list[Item] = []
    for number in range(first, first + rounds):
        half = prose(number, tokens // 2)
        rest = prose(number + 1000, tokens // 2)
        items += pair(number, f"{name_listing(number)} {half}\nthe limit is in {name_path(number)}\n{rest}")
    return items


def name_listing(number: int) -> str:
    """How the result of a step of `work` begins; it is no fact to anybody."""
    return f"listing <{number}>"


def name_path(number: int) -> str:
    """The path in the middle of it, which is one."""
    return f"/srv/app/module_{number}.py"


def make_png(shade: int = 0, size: int = 8) -> str:
    """A small picture as a data URL; different shades give different bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes([shade % 256]) * size for _ in range(size))
    head = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    return "data:image/png;base64," + base64.b64encode(png).decode()


def image(url: str) -> dict[str, Any]:
    """An image as a part of a message or of a result."""
    return {"type": "input_image", "image_url": url}


def text_part(text: str) -> dict[str, Any]:
    """A text as such a part."""
    return {"type": "input_text", "text": text}


# The model server


#: A model server that is out of order.
FAILING = Reply([make_json({"error": {"message": "Out of memory.", "type": "server_error"}}, status=500)])


class Model:
    """Answers rounds and writes summaries; refuses prompts that are longer than its window, in llama.cpp's words.

    `forms`: how the first summaries are given; later ones as they are asked for. `spoilers`: what the first summary
    requests get instead of one; a number refuses their length, and is the window that is told. `retain`: what stands in
    the items that a summary chooses to keep; `retain_ids`: references that it names without having seen them.
    """

    def __init__(
        self,
        *,
        window_tokens: int | None = None,
        summary: str | Callable[[Request], str] = SUMMARY,
        retain: Sequence[str] = (),
        forms: Sequence[Form] = (),
        retain_ids: Sequence[str] = (),
        spoilers: Iterable[Reply | int] = (),
        answers: Iterable[Generation] = (),
    ) -> None:
        self.window_tokens = window_tokens
        self.summary = summary
        self.retain = list(retain)
        self.forms = list(forms)
        self.retain_ids = list(retain_ids)
        self.spoilers = list(spoilers)
        self.answers = list(answers)
        #: What was asked, in order, refused requests apart.
        self.rounds: list[Request] = []
        self.summaries: list[Request] = []
        self.refused: list[Request] = []

    def __call__(self, request: Request) -> Reply:
        tokens = count_tokens(request)
        is_summary = is_summary_request(request)
        if is_summary and self.spoilers:
            self.refused.append(request)
            spoiler = self.spoilers.pop(0)
            return refuse_length(tokens, spoiler) if isinstance(spoiler, int) else spoiler
        if self.window_tokens is not None and tokens > self.window_tokens:
            self.refused.append(request)
            return refuse_length(tokens, self.window_tokens)
        if not is_summary:
            self.rounds.append(request)
            return write(self.answers.pop(0) if self.answers else ANSWER, prompt_tokens=tokens)
        self.summaries.append(request)
        return self._summarise(request, tokens)

    def _summarise(self, request: Request, tokens: int) -> Reply:
        text = self.summary if isinstance(self.summary, str) else self.summary(request)
        form = self.forms.pop(0) if self.forms else "asked"
        chosen = [*find_references(request, self.retain), *self.retain_ids]
        schema = find_schema(request)
        if form == "prose" or (form == "asked" and schema is None):
            named = [f"RETAIN: {', '.join(chosen)}"] if chosen else []
            return write("\n".join([text, *named]), tokens)
        if form != "asked":
            return write({"empty": " ", "broken": '{"goal": '}[form], tokens)
        assert schema is not None
        filled: dict[str, Any] = {name: [] if name != "goal" else text for name in schema["properties"]}
        arguments = json.dumps({**filled, **({RETAIN_KEY: chosen} if RETAIN_KEY in filled else {})})
        if offers_summary(request):
            return write([("create_summary", json.dumps({"summary": text, RETAIN_KEY: chosen}))], tokens)
        return write(arguments, tokens)


def offers_summary(request: Request) -> bool:
    """Whether the tool is offered that a summary can be handed over by."""
    return any(tool["function"]["name"] == "create_summary" for tool in request.json.get("tools", []))


def find_schema(request: Request) -> dict[str, Any] | None:
    """The schema that an answer is to have, as its format or as the arguments of that tool."""
    for tool in request.json.get("tools", []):
        if tool["function"]["name"] == "create_summary":
            schema: dict[str, Any] = tool["function"]["parameters"]
            return schema
    told: dict[str, Any] | None = request.json.get("response_format", {}).get("json_schema", {}).get("schema")
    return told


def find_references(request: Request, marks: Sequence[str]) -> list[str]:
    """The references (`#12`) of the items that are told with one of these texts in them, in order."""
    told = read_content(request.json["messages"][-1])
    found = re.findall(r"^\[?(#\d+)(?:, of #\d+)?\]? (.*?)(?=^\[?#\d+|\Z)", told, re.MULTILINE | re.DOTALL)
    return [reference for reference, text in found if any(mark in text for mark in marks)]


def is_summary_request(request: Request) -> bool:
    """Whether a prompt asks for a summary, behind the conversation or with a transcript of its own."""
    first, last = (read_content(request.json["messages"][at]) for at in (0, -1))
    return DEFAULT_TEXTS.system in first or DEFAULT_TEXTS.in_place in last or offers_summary(request)


def refuse_length(tokens: int, window_tokens: int) -> Reply:
    """What llama.cpp's server says of a prompt that is too long."""
    message = f"request ({tokens} tokens) exceeds the available context size ({window_tokens} tokens)"
    numbers = {"n_prompt_tokens": tokens, "n_ctx": window_tokens}
    error = {"code": 400, "message": message, "type": "exceed_context_size_error", **numbers}
    return Reply([make_json({"error": error}, status=400)])


def count_tokens(request: Request) -> int:
    """A prompt's tokens, as this model server counts."""
    body = request.json
    text = show_prompt(request) + (json.dumps(body["tools"]) if body.get("tools") else "")
    marks = MESSAGE_TOKENS * len(body["messages"])
    return len(TOKEN.findall(text)) + marks + IMAGE_TOKENS * len(list_images(request))


# What the model was shown


def read_content(message: dict[str, Any]) -> str:
    """The text of a message, whatever form its content has."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def list_messages(request: Request) -> list[tuple[str, str]]:
    """(role, text) of each message; a call is told as `name(arguments)` behind the text."""
    told = []
    for message in request.json["messages"]:
        calls = "".join(
            f"{each['function']['name']}({each['function']['arguments']})"
            for each in message.get("tool_calls") or ()
        )
        told.append((message["role"], read_content(message) + calls))
    return told


def list_texts(request: Request, role: str) -> list[str]:
    """The texts of one role."""
    return [text for told, text in list_messages(request) if told == role]


def show_prompt(request: Request) -> str:
    """All text of a prompt, calls and results included, images left out."""
    return "\n".join(text for _, text in list_messages(request))


def list_images(request: Request) -> list[str]:
    """The addresses of all images, in order."""
    return [
        part["image_url"]["url"]
        for message in request.json["messages"]
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if part["type"] == "image_url"
    ]


def list_pairs(request: Request) -> list[tuple[str, str]]:
    """(call id, result) of each call in the prompt; fails if a result has no call before it or a call two results.

    A call that nothing answers has no entry.
    """
    waiting: set[str] = set()
    pairs = []
    for message in request.json["messages"]:
        for each in message.get("tool_calls") or ():
            assert each["id"] not in waiting, f"a call stands twice: {each}"
            waiting.add(each["id"])
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting, f"a result without its call: {message}"
            waiting.remove(message["tool_call_id"])
            pairs.append((message["tool_call_id"], read_content(message)))
    return pairs


def list_open_calls(request: Request) -> list[str]:
    """The call ids that no result answers."""
    answered = {call_id for call_id, _ in list_pairs(request)}
    return [
        each["id"]
        for message in request.json["messages"]
        for each in message.get("tool_calls") or ()
        if each["id"] not in answered
    ]


def find_summary(request: Request) -> str:
    """The one message that stands for what was compacted; fails unless there is exactly one."""
    (found,) = [text for text in list_texts(request, "user") if text.startswith(HEADING)]
    return found


# A server before it


class CompactingHouse:
    """One running server and its model; the entrances to a compaction, each by one call."""

    def __init__(self, house: House, model: Model) -> None:
        self.house = house
        self.model = model
        self.client = house.client

    async def compact(self, items: Sequence[Item] | str | None, **fields: Any) -> dict[str, Any]:
        """`POST /v1/responses/compact`; fails unless it is answered."""
        body = {"model": MODEL, **({} if items is None else {"input": items}), **fields}
        answer = await self.client.send("POST", "/v1/responses/compact", body)
        assert answer.status == 200, answer.body
        made: dict[str, Any] = answer.body
        return made

    async def refuse_compact(self, status: int = 400, **body: Any) -> dict[str, Any]:
        """The error object of such a request that must be refused."""
        answer = await self.client.send("POST", "/v1/responses/compact", {"model": MODEL, **body})
        assert answer.status == status, answer.body
        return answer.error

    async def trigger(self, items: Sequence[Item], *, stream: bool = True, **fields: Any) -> dict[str, Any]:
        """A request whose last item is the trigger; the answer's output must be one compaction item."""
        made = await self.house.make(stream=stream, input=[*items, TRIGGER], **fields)
        assert [item["type"] for item in made["output"]] == ["compaction"], made["output"]
        return made

    async def show(self, items: Sequence[Item], **fields: Any) -> Request:
        """The prompt of a round that is made from these items and one more message of the user's."""
        await self.house.make(input=[*items, user("Go on.")], **fields)
        return self.model.rounds[-1]


def read_item(made: dict[str, Any]) -> Item:
    """The one compaction item of a response or of a compacted window."""
    (found,) = [item for item in made["output"] if item["type"] == "compaction"]
    return dict(found)


def read_passes(made: dict[str, Any]) -> list[dict[str, Any]]:
    """What a response says of its compaction passes."""
    passes: list[dict[str, Any]] = made.get("antiphon", {}).get("compaction", {}).get("passes", [])
    return passes


def read_pass(made: dict[str, Any]) -> dict[str, Any]:
    """The same of one that made one pass."""
    (only,) = read_passes(made)
    return only


def make_settings(
    upstream: FakeUpstream,
    *,
    window_tokens: int | None = None,
    profile: dict[str, Any] | None = None,
    compaction: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """The configuration before such a model server."""
    facts = {**({} if window_tokens is None else {"window_tokens": window_tokens}), **(profile or {})}
    return {
        "endpoints": {"fake": {"url": upstream.url, "profile": "small"}},
        "profiles": {"small": {"stream_usage": True, **facts}},
        "models": {MODEL: {"endpoint": "fake", **(model or {})}},
        "compaction": compaction or {},
        **sections,
    }


def run(
    folder: Path, model: Model, story: Callable[[CompactingHouse], Awaitable[None]], **settings: Any
) -> None:
    """Play a story before a model server; `settings` are those of `make_settings`."""

    async def main() -> None:
        async with asyncio.timeout(2 * WAIT_S), FakeUpstream(model) as upstream:
            configured = make_settings(upstream, **settings)
            async with open_house(folder, upstream, settings=configured) as house:
                house.engine.services.counter = TokenCounter(_load_tokenizer)
                await story(CompactingHouse(house, model))

    asyncio.run(main())
