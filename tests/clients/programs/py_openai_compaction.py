"""openai-python and compaction: its method, the trigger, `context_management`; both clients, and a WebSocket."""

import os
import unittest
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI

URL = os.environ["SERVER_URL"]
MODEL = "scripted"
OTHER = "gpt-other"
PLANT = "Remember this word: marmalade."
ASK: Any = {"role": "user", "content": "What was the word?"}
KNOWN = "The word is marmalade."
TRIGGER: Any = {"type": "compaction_trigger"}
#: The smallest threshold of the API; the history is well over it.
MANAGED: Any = [{"type": "compaction", "compact_threshold": 1000}]
WAIT_S = 30


def make_history(start: int = 0) -> list[Any]:
    """A word, then results of a tool that are long and of no use; calls are numbered from `start`."""
    items: list[Any] = [{"role": "user", "content": PLANT}, {"role": "assistant", "content": "Noted."}]
    for number in range(start, start + 6):
        output = "\n".join(f"Shelf {number}{row} holds nothing of interest." for row in range(40))
        call = {"call_id": f"call_{number}", "name": "look", "arguments": "{}"}
        items += [
            {"type": "function_call", **call},
            {"type": "function_call_output", "call_id": f"call_{number}", "output": output},
        ]
    return [*items, {"role": "assistant", "content": "All is looked at."}]


def dump(items: list[Any]) -> list[Any]:
    """Items as a client sends them back."""
    return [item.model_dump(exclude_unset=True, warnings=False) for item in items]


def list_types(items: list[Any]) -> list[str]:
    return [item.type for item in items]


class TestSync(unittest.TestCase):
    """The blocking client."""

    def setUp(self) -> None:
        self.client = OpenAI(base_url=URL, api_key="none", max_retries=0, timeout=WAIT_S)
        self.addCleanup(self.client.close)
        self.responses = self.client.responses

    def ask(self, items: list[Any], **fields: Any) -> Any:
        return self.responses.create(**{"model": MODEL, "input": items, **fields})

    def test_a_window_is_compacted_and_gone_on_with(self) -> None:
        compacted = self.responses.compact(model=MODEL, input=make_history())
        self.assertEqual(compacted.object, "response.compaction")
        self.assertEqual(list_types(compacted.output), ["message", "compaction"])
        self.assertGreaterEqual(compacted.usage.total_tokens, 0)
        answer = self.ask([*dump(compacted.output), ASK])
        self.assertEqual(answer.output_text, KNOWN)
        again = self.responses.compact(model=MODEL, input=[*dump(compacted.output), *make_history(6)[1:]])
        self.assertEqual(list_types(again.output).count("compaction"), 1)
        self.assertEqual(self.ask([*dump(again.output), ASK]).output_text, KNOWN)
        with self.assertRaises(openai.NotFoundError):
            self.responses.retrieve(compacted.id)

    def test_a_stored_response_is_compacted_by_its_id(self) -> None:
        planted = self.ask([{"role": "user", "content": PLANT}])
        compacted = self.responses.compact(model=MODEL, previous_response_id=planted.id)
        self.assertEqual(self.ask([*dump(compacted.output), ASK]).output_text, KNOWN)

    def test_a_trigger_brings_one_item_that_works_alone(self) -> None:
        made = self.ask([*make_history(), TRIGGER], store=False)
        self.assertEqual(list_types(made.output), ["compaction"])
        self.assertEqual(made.output_text, "")
        item = dump(made.output)
        for model in (MODEL, OTHER):
            self.assertEqual(self.ask([*item, ASK], model=model, store=False).output_text, KNOWN)
        renamed = [{**item[0], "type": "compaction_summary"}]
        self.assertEqual(self.ask([*renamed, ASK]).output_text, KNOWN)

    def test_a_trigger_compacts_what_is_stored(self) -> None:
        first = self.ask([*make_history(), ASK])
        made = self.ask([TRIGGER], previous_response_id=first.id)
        self.assertEqual(list_types(made.output), ["compaction"])
        self.assertEqual(self.ask([ASK], previous_response_id=made.id).output_text, KNOWN)
        self.assertEqual(self.responses.retrieve(made.id), made)
        listed = [item.type for item in self.responses.input_items.list(made.id)]
        self.assertNotIn("compaction_trigger", listed)

    def test_events_of_a_trigger_are_accumulated(self) -> None:
        with self.responses.stream(model=MODEL, input=[*make_history(), TRIGGER]) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        self.assertEqual(kinds[0], "response.created")
        self.assertEqual(kinds[-1], "response.completed")
        self.assertEqual(kinds.count("response.output_item.done"), 1)
        self.assertEqual(list_types(final.output), ["compaction"])
        self.assertEqual(self.ask([*dump(final.output), ASK]).output_text, KNOWN)

    def test_a_response_that_compacts_by_itself_is_accumulated(self) -> None:
        request: Any = {"model": MODEL, "input": [*make_history(), ASK], "context_management": MANAGED}
        with self.responses.stream(**request) as stream:
            deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
        self.assertEqual(list_types(final.output), ["compaction", "message"])
        self.assertEqual((deltas, final.output_text), (KNOWN, KNOWN))
        plain = self.responses.create(**request)
        self.assertEqual(list_types(plain.output), ["compaction", "message"])
        self.assertEqual(self.responses.retrieve(plain.id), plain)
        again = self.ask([ASK], previous_response_id=plain.id)
        full = self.ask([*make_history(), ASK, {"role": "assistant", "content": KNOWN}, ASK])
        self.assertEqual(again.output_text, KNOWN)
        self.assertLess(again.usage.input_tokens, full.usage.input_tokens)

    def test_a_broken_seal_and_a_misplaced_trigger_are_refused(self) -> None:
        broken: Any = {"type": "compaction", "id": "cmp_1", "encrypted_content": "garbage"}
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask([broken, ASK])
        self.assertEqual(caught.exception.code, "invalid_encrypted_content")
        self.assertIn("cmp_1", caught.exception.message)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask([TRIGGER, ASK])
        self.assertEqual(caught.exception.param, "input")

    def test_over_a_websocket(self) -> None:
        with self.client.responses.connect() as connection:
            connection.response.create(model=MODEL, input=make_history(), store=False, generate=False)
            warm = self.read(connection)
            connection.response.create(
                model=MODEL, input=[TRIGGER], previous_response_id=warm.id, store=False
            )
            made = self.read(connection)
            self.assertEqual(list_types(made.output), ["compaction"])
            connection.response.create(model=MODEL, input=[ASK], previous_response_id=made.id, store=False)
            self.assertEqual(self.read(connection).output_text, KNOWN)
            connection.response.create(model=MODEL, input=[*dump(made.output), ASK], store=False)
            self.assertEqual(self.read(connection).output_text, KNOWN)

    def read(self, connection: Any) -> Any:
        for event in connection:
            self.assertNotEqual(event.type, "error", event)
            if event.type == "response.completed":
                return event.response
        raise AssertionError("closed")


class TestAsync(unittest.IsolatedAsyncioTestCase):
    """The asynchronous client."""

    async def asyncSetUp(self) -> None:
        self.client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0, timeout=WAIT_S)
        self.addAsyncCleanup(self.client.close)
        self.responses = self.client.responses

    async def ask(self, items: list[Any], **fields: Any) -> Any:
        return await self.responses.create(**{"model": MODEL, "input": items, **fields})

    async def test_a_window_is_compacted_and_gone_on_with(self) -> None:
        compacted = await self.responses.compact(model=MODEL, input=make_history())
        self.assertEqual(list_types(compacted.output), ["message", "compaction"])
        self.assertEqual((await self.ask([*dump(compacted.output), ASK])).output_text, KNOWN)
        planted = await self.ask([{"role": "user", "content": PLANT}])
        by_id = await self.responses.compact(model=MODEL, previous_response_id=planted.id)
        self.assertEqual((await self.ask([*dump(by_id.output), ASK])).output_text, KNOWN)

    async def test_a_trigger_brings_one_item_that_works_alone(self) -> None:
        async with self.responses.stream(
            model=MODEL, input=[*make_history(), TRIGGER], store=False
        ) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        self.assertEqual(kinds.count("response.output_item.added"), 1)
        self.assertEqual(list_types(final.output), ["compaction"])
        self.assertEqual((await self.ask([*dump(final.output), ASK])).output_text, KNOWN)

    async def test_a_response_that_compacts_by_itself_is_accumulated(self) -> None:
        async with self.responses.stream(
            model=MODEL, input=[*make_history(), ASK], context_management=MANAGED
        ) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
        self.assertEqual(list_types(final.output), ["compaction", "message"])
        self.assertEqual(final.output_text, KNOWN)
        again = await self.ask([ASK], previous_response_id=final.id)
        self.assertEqual(again.output_text, KNOWN)

    async def test_a_broken_seal_is_refused(self) -> None:
        broken: Any = {"type": "compaction", "id": "cmp_1", "encrypted_content": "garbage"}
        with self.assertRaises(openai.BadRequestError) as caught:
            await self.ask([broken, ASK])
        self.assertEqual(caught.exception.code, "invalid_encrypted_content")

    async def test_over_a_websocket(self) -> None:
        async with self.client.responses.connect() as connection:
            await connection.response.create(model=MODEL, input=[*make_history(), TRIGGER], store=False)
            made = await self.read(connection)
            self.assertEqual(list_types(made.output), ["compaction"])
            await connection.response.create(
                model=MODEL, input=[ASK], previous_response_id=made.id, store=False
            )
            self.assertEqual((await self.read(connection)).output_text, KNOWN)

    async def read(self, connection: Any) -> Any:
        async for event in connection:
            self.assertNotEqual(event.type, "error", event)
            if event.type == "response.completed":
                return event.response
        raise AssertionError("closed")


if __name__ == "__main__":
    unittest.main()
