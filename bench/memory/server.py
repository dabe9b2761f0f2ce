"""One Antiphon server in this process before the played model, and the talk of a client with it.

It knows the wire, and neither facts nor scores. Invariant: whatever a request leaves in the model's prompt is read from
what the model was really sent.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from antiphon.bootstrap import build_application, build_engine
from antiphon.client import AppTransport, ClientError, ResponsesClient, TransportLimits
from antiphon.config import load_config
from bench.memory.conversations import TOOLS, Conversation, Item, Round, make_user_message
from bench.memory.model import PlayedModel, Saying, Shown

#: No answer takes longer; what hangs is a fault.
WAIT_S = 60.0
_PAGE = 100


class Reader:
    """Reads what a server keeps."""

    def __init__(self, client: ResponsesClient) -> None:
        self.client = client
        self._fetched: dict[tuple[str, str], list[Item]] = {}

    async def fetch(self, first: str, last: str) -> list[Item]:
        """The stored items behind an id or a range; none where the server knows none."""
        if (first, last) not in self._fetched:
            self._fetched[first, last] = await self._fetch(first, last)
        return self._fetched[first, last]

    def forget_fetched(self) -> None:
        """Before the next conversation: what was fetched is not needed again."""
        self._fetched.clear()

    async def read_window(self, response_id: str) -> dict[str, Any]:
        """The server's own report of what the model was shown."""
        report: dict[str, Any] = (await self.client.request("GET", f"/responses/{response_id}/window")).body
        return report

    async def _fetch(self, first: str, last: str) -> list[Item]:
        try:
            if first == last:
                return [(await self.client.request("GET", f"/items/{first}")).body]
            items: list[Item] = []
            query: dict[str, Any] = {"from": first, "to": last, "limit": _PAGE}
            while True:
                page = (await self.client.request("GET", "/items", query=query)).body
                items += page["data"]
                if not page["has_more"] or not page["data"]:
                    return items
                query["after"] = page["last_id"]
        except ClientError as refusal:
            if refusal.status in (400, 404):
                return []
            raise


class Talk(Reader):
    """A client's requests to one server, and the played model behind it."""

    def __init__(self, client: ResponsesClient, model: PlayedModel) -> None:
        super().__init__(client)
        self.model = model

    async def ask(
        self, question: str | None, body: dict[str, Any], saying: Saying
    ) -> tuple[dict[str, Any], Shown]:
        """One response to a newest question (None: whatever it is), and what the model was shown for it."""
        self.model.expect(question, saying)
        answer: dict[str, Any] = (await self.client.create(body)).body
        shown = self.model.shown
        if shown is None:
            raise FaultError(f"the model was not asked, and the response is {answer.get('status')}")
        return answer, shown

    async def compact(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A request that is a compaction alone: no question is asked of the model."""
        self.model.expect("", Saying(""))
        answer: dict[str, Any] = (await self.client.request("POST", path, body=body)).body
        return answer


class FaultError(Exception):
    """The server did what it must not do."""


@asynccontextmanager
async def open_talk(folder: Path, kind: type[Talk] = Talk) -> AsyncIterator[Talk]:
    """The server with its defaults and a database in `folder`; its client is of that kind."""
    model = PlayedModel()
    flags = {
        "server": {"data": str(folder)},
        # Any dialect: the backend of this name is given below.
        "endpoints": {model.name: {"dialect": "scripted"}},
    }
    config = load_config(flags, environ={}, cwd=folder)
    engine = build_engine(config, {model.name: model})
    try:
        await engine.start()
        transport = AppTransport(
            build_application(config, engine), TransportLimits(idle_timeout_s=WAIT_S, close_timeout_s=WAIT_S)
        )
        client = ResponsesClient(transport)
        try:
            yield kind(client, model)
        finally:
            await client.close()
    finally:
        await engine.close()


class Chain:
    """A conversation as it was talked: the newest response, and all items as the client has them."""

    def __init__(self, talk: Talk, conversation: Conversation, model: str) -> None:
        self._talk = talk
        self._conversation = conversation
        self.model = model
        self.tip: str | None = None
        #: Everything, in order: what was sent, and what came.
        self.items: list[Item] = []
        #: Of every call that was made.
        self.call_ids: list[str] = []
        #: The results of the newest calls, which nobody has been sent yet.
        self.results: list[Item] = []

    async def play(self, rounds: Sequence[Round]) -> None:
        """Talk so many rounds more."""
        for each in rounds:
            await self._play(each)

    async def ask(self, question: str, **fields: Any) -> tuple[dict[str, Any], Shown]:
        """A question that ends the talk: what came, and what the model was shown. The chain stays where it is."""
        body = self.make_body(**fields)
        body["input"] = [*body.get("input", ()), *self.take_results(), make_user_message(question)]
        return await self._talk.ask(question, body, Saying("I will look into it."))

    def make_body(self, **fields: Any) -> dict[str, Any]:
        """A request of this conversation; what is None is left out."""
        body = {
            "model": self.model,
            "instructions": self._conversation.instructions,
            "tools": TOOLS,
            **fields,
        }
        return {name: value for name, value in body.items() if value is not None}

    def take_results(self) -> list[Item]:
        """The results that were not sent; they are sent now."""
        taken, self.results = self.results, []
        self.items += taken
        return taken

    async def _play(self, each: Round) -> None:
        sent = self.take_results()
        # After a compaction in the middle of a turn there is nothing to send; then a user says something.
        said = each.said or ("" if sent else "Go on.")
        if said:
            sent = [*sent, make_user_message(said, each.images)]
            self.items.append(sent[-1])
        number = len(self.call_ids)
        calls = [
            (call.name, call.encoded_arguments, f"call_{number + at}") for at, call in enumerate(each.calls)
        ]
        body = self.make_body(input=sent, previous_response_id=self.tip)
        answer, _ = await self._talk.ask(None, body, Saying(each.answer, calls))
        made = [item for item in answer["output"] if item["type"] == "function_call"]
        if answer["status"] != "completed" or len(made) != len(calls):
            raise FaultError(f"a round came back {answer['status']} with {len(made)} of {len(calls)} calls")
        self.results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": call.result}
            for item, call in zip(made, each.calls, strict=True)
        ]
        self.call_ids += [item["call_id"] for item in made]
        self.items += answer["output"]
        self.tip = answer["id"]
