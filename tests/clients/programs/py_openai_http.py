"""openai-python over HTTP: every endpoint, with both clients, against a server of the scripted model."""

import asyncio
import json
import os
import threading
import unittest
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

URL = os.environ["SERVER_URL"]
PLANT = "Remember this word: marmalade."
ASK = "What was the word?"
MODEL = "scripted"
WAIT_S = 30
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Word(BaseModel):
    """What is asked for in JSON."""

    word: str


class GetWeather(BaseModel):
    """The weather of a city."""

    city: str


def user_texts(items: list[Any]) -> list[str]:
    """The texts of the user's messages."""
    return [item.content[0].text for item in items if getattr(item, "role", "") == "user"]


class TestSync(unittest.TestCase):
    """The blocking client."""

    def setUp(self) -> None:
        self.client = OpenAI(base_url=URL, api_key="none", max_retries=0, timeout=WAIT_S)
        self.addCleanup(self.client.close)
        self.responses = self.client.responses

    def test_create_continue_retrieve_delete(self) -> None:
        planted = self.responses.create(model=MODEL, input=PLANT, metadata={"a": "b"})
        asked = self.responses.create(model=MODEL, input=ASK, previous_response_id=planted.id)
        self.assertEqual(asked.output_text, "The word is marmalade.")
        self.assertEqual(asked.previous_response_id, planted.id)
        self.assertEqual(self.responses.create(model=MODEL, input=ASK).output_text, "I do not know.")
        self.assertEqual(self.responses.retrieve(planted.id), planted)
        self.assertIsNone(self.responses.delete(planted.id))
        with self.assertRaises(openai.NotFoundError):
            self.responses.retrieve(planted.id)
        with self.assertRaises(openai.NotFoundError):
            self.responses.delete(planted.id)

    def test_iterated_events_add_up_to_what_is_stored(self) -> None:
        events = list(self.responses.create(model=MODEL, input=PLANT, stream=True))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        self.assertGreater(len(deltas), 1)
        self.assertEqual("".join(deltas), "Noted: marmalade.")
        self.assertEqual(events[-1].type, "response.completed")
        self.assertEqual(self.responses.retrieve(events[-1].response.id), events[-1].response)

    def test_the_stream_helper_ends_with_what_is_stored(self) -> None:
        for text in (PLANT, "think", "decline", "Use get_weather for Paris."):
            with self.subTest(text):
                with self.responses.stream(model=MODEL, input=text, tools=[TOOL]) as stream:
                    for _ in stream:
                        pass
                    final = stream.get_final_response()
                read = self.responses.retrieve(final.id)
                self.assertEqual(read.usage, final.usage)
                self.assertEqual(
                    [(item.type, item.id) for item in read.output],
                    [(item.type, item.id) for item in final.output],
                )
                self.assertEqual(read.output_text, final.output_text)

    def test_pydantic_models_are_parsed(self) -> None:
        planted = self.responses.create(model=MODEL, input=PLANT)
        parsed = self.responses.parse(
            model=MODEL, input=ASK, text_format=Word, previous_response_id=planted.id
        )
        self.assertEqual(parsed.output_parsed, Word(word="marmalade"))
        with self.responses.stream(
            model=MODEL, input=ASK, text_format=Word, previous_response_id=planted.id
        ) as stream:
            self.assertEqual(stream.get_final_response().output_parsed, Word(word="marmalade"))

    def test_arguments_are_parsed_and_the_loop_closes(self) -> None:
        tools = [openai.pydantic_function_tool(GetWeather, name="get_weather")]
        flat: Any = [{"type": "function", **tool["function"]} for tool in tools]
        first = self.responses.parse(model=MODEL, input="Use get_weather for Paris.", tools=flat)
        (call,) = first.output
        self.assertEqual(json.loads(call.arguments), {"city": "Paris"})
        second = self.responses.create(
            model=MODEL,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}],
            previous_response_id=first.id,
            tools=flat,
        )
        self.assertIn("18 degrees", second.output_text)
        with self.assertRaises(openai.BadRequestError):
            self.responses.create(model=MODEL, input="Go on.", previous_response_id=first.id)

    def test_a_background_stream_is_resumed_where_it_was_left(self) -> None:
        seen: list[Any] = []
        with self.responses.create(model=MODEL, input="slowly", background=True, stream=True) as stream:
            for event in stream:
                seen.append(event)
                if event.type == "response.output_text.delta":
                    break
        response_id = seen[0].response.id
        last = seen[-1].sequence_number
        rest = list(self.responses.retrieve(response_id, stream=True, starting_after=last))
        self.assertEqual(rest[0].sequence_number, last + 1)
        self.assertEqual(rest[-1].type, "response.completed")
        whole = list(self.responses.retrieve(response_id, stream=True))
        self.assertEqual(whole, seen + rest)
        with self.responses.stream(response_id=response_id, starting_after=last) as helper:
            numbers = [event.sequence_number for event in helper]
            self.assertEqual(helper.get_final_response().output_text, "one two three four five six")
        self.assertEqual(numbers, [event.sequence_number for event in rest])

    def test_a_background_response_is_cancelled(self) -> None:
        queued = self.responses.create(model=MODEL, input="hang", background=True)
        self.assertEqual((queued.status, queued.output), ("queued", []))
        for _ in range(2):
            self.assertEqual(self.responses.cancel(queued.id).status, "cancelled")
        self.assertEqual(self.responses.retrieve(queued.id).status, "cancelled")
        done = self.responses.create(model=MODEL, input=PLANT)
        with self.assertRaisesRegex(openai.BadRequestError, "synchronous"):
            self.responses.cancel(done.id)

    def test_input_items_are_paged(self) -> None:
        tip = None
        for number in range(4):
            tip = self.responses.create(model=MODEL, input=f"number {number}", previous_response_id=tip).id
        for order in ("asc", "desc"):
            items = list(self.responses.input_items.list(tip, limit=2, order=order))
            self.assertEqual(len({item.id for item in items}), 7)
            numbers = [f"number {number}" for number in range(4)]
            self.assertEqual(user_texts(items), numbers if order == "asc" else numbers[::-1])
        page = self.responses.input_items.list(tip, limit=5)
        self.assertTrue(page.has_more)
        self.assertFalse(page.get_next_page().has_more)

    def test_input_tokens_are_those_of_usage(self) -> None:
        planted = self.responses.create(model=MODEL, input=PLANT)
        request: Any = {"model": MODEL, "input": ASK, "previous_response_id": planted.id, "tools": [TOOL]}
        counted = self.responses.input_tokens.count(**request)
        self.assertEqual(counted.input_tokens, self.responses.create(**request).usage.input_tokens)
        self.assertGreater(counted.input_tokens, planted.usage.total_tokens)

    def test_a_conversation_from_creation_to_deletion(self) -> None:
        conversations = self.client.conversations
        made = conversations.create(
            metadata={"topic": "fruit"}, items=[{"type": "message", "role": "user", "content": PLANT}]
        )
        answer = self.responses.create(model=MODEL, input=ASK, conversation=made.id)
        self.assertEqual(answer.output_text, "The word is marmalade.")
        self.assertEqual(answer.conversation.id, made.id)
        extra: Any = [{"type": "message", "role": "user", "content": f"{n}"} for n in range(20)]
        added = conversations.items.create(made.id, items=extra)
        self.assertEqual(len(added.data), 20)
        for order in ("asc", "desc"):
            items = list(conversations.items.list(made.id, limit=7, order=order))
            texts = [PLANT, ASK, *(f"{n}" for n in range(20))]
            self.assertEqual(user_texts(items), texts if order == "asc" else texts[::-1])
            self.assertEqual(len({item.id for item in items}), 23)
        newest = conversations.items.retrieve(added.last_id, conversation_id=made.id)
        self.assertEqual(newest, added.data[-1])
        conversations.items.delete(newest.id, conversation_id=made.id)
        self.assertEqual(len(list(conversations.items.list(made.id))), 22)
        self.assertEqual(conversations.update(made.id, metadata={"a": "b"}).metadata, {"a": "b"})
        self.assertEqual(conversations.retrieve(made.id).metadata, {"a": "b"})
        self.assertTrue(conversations.delete(made.id).deleted)
        for gone in (
            lambda: conversations.retrieve(made.id),
            lambda: conversations.items.list(made.id),
            lambda: self.responses.create(model=MODEL, input=ASK, conversation=made.id),
        ):
            with self.assertRaises(openai.NotFoundError):
                gone()

    def test_models_are_listed_and_read(self) -> None:
        self.assertEqual([model.id for model in self.client.models.list()], [MODEL])
        self.assertEqual(self.client.models.retrieve(MODEL).id, MODEL)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.models.retrieve("nobody")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_errors_are_of_the_packages_classes(self) -> None:
        gone = "resp_" + "0" * 48
        cases: list[Any] = [
            ({"input": "refuse 400"}, openai.BadRequestError, 400, None, None),
            ({"input": "refuse 429"}, openai.RateLimitError, 429, "rate_limit_exceeded", None),
            ({"input": "refuse 500"}, openai.InternalServerError, 502, None, None),
            ({"model": "nobody"}, openai.BadRequestError, 400, "model_not_found", "model"),
            ({"extra_body": {"sotre": 1}}, openai.BadRequestError, 400, "unknown_parameter", "sotre"),
            (
                {"previous_response_id": gone},
                openai.BadRequestError,
                400,
                "previous_response_not_found",
                "previous_response_id",
            ),
        ]
        for body, kind, *rest in cases:
            for stream in (False, True):
                with self.subTest(body, stream=stream):
                    with self.assertRaises(openai.APIStatusError) as caught:
                        self.responses.create(**{"model": MODEL, "input": "x", "stream": stream, **body})
                    error = caught.exception
                    self.assertIs(type(error), kind)
                    self.assertEqual([error.status_code, error.code, error.param], rest)
                    self.assertTrue(error.request_id)

    def test_a_stream_that_breaks_raises_and_one_that_is_cut_does_not(self) -> None:
        with self.assertRaisesRegex(openai.APIError, "Boom"):
            list(self.responses.create(model=MODEL, input="break", stream=True))
        *_, last = self.responses.create(model=MODEL, input="cut", stream=True)
        self.assertEqual(last.type, "response.incomplete")
        self.assertEqual(last.response.incomplete_details.reason, "max_output_tokens")

    def test_raw_and_streamed_answers(self) -> None:
        raw = self.responses.with_raw_response.create(model=MODEL, input=PLANT)
        self.assertTrue(raw.headers["x-request-id"].startswith("req_"))
        made = raw.parse()
        self.assertEqual(made.output_text, "Noted: marmalade.")
        self.assertEqual(self.responses.with_raw_response.retrieve(made.id).parse(), made)
        with self.responses.with_streaming_response.retrieve(made.id) as streamed:
            self.assertEqual(streamed.headers["content-type"], "application/json")
            self.assertEqual(json.loads(b"".join(streamed.iter_bytes()))["id"], made.id)
        with self.responses.with_streaming_response.create(model=MODEL, input=PLANT, stream=True) as streamed:
            lines = [line for line in streamed.iter_lines() if line.startswith("data: ")]
        self.assertEqual(lines[-1], "data: [DONE]")


class TestAsync(unittest.IsolatedAsyncioTestCase):
    """The asynchronous client."""

    async def asyncSetUp(self) -> None:
        self.client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0, timeout=WAIT_S)
        self.addAsyncCleanup(self.client.close)
        self.responses = self.client.responses

    async def test_create_continue_retrieve_delete(self) -> None:
        planted = await self.responses.create(model=MODEL, input=PLANT)
        asked = await self.responses.create(model=MODEL, input=ASK, previous_response_id=planted.id)
        self.assertEqual(asked.output_text, "The word is marmalade.")
        self.assertEqual(await self.responses.retrieve(asked.id), asked)
        items = [item async for item in self.responses.input_items.list(asked.id, limit=1, order="asc")]
        self.assertEqual(user_texts(items), [PLANT, ASK])
        counted = await self.responses.input_tokens.count(
            model=MODEL, input=ASK, previous_response_id=planted.id
        )
        self.assertEqual(counted.input_tokens, asked.usage.input_tokens)
        await self.responses.delete(asked.id)
        with self.assertRaises(openai.NotFoundError):
            await self.responses.retrieve(asked.id)
        self.assertEqual([model.id async for model in self.client.models.list()], [MODEL])

    async def test_streams_are_iterated_parsed_and_resumed(self) -> None:
        planted = await self.responses.create(model=MODEL, input=PLANT)
        async with self.responses.stream(
            model=MODEL, input=ASK, text_format=Word, previous_response_id=planted.id
        ) as stream:
            final = await stream.get_final_response()
        self.assertEqual(final.output_parsed, Word(word="marmalade"))
        parsed = await self.responses.parse(
            model=MODEL, input=ASK, text_format=Word, previous_response_id=planted.id
        )
        self.assertEqual(parsed.output_parsed, final.output_parsed)
        opened = await self.responses.create(model=MODEL, input="slowly", background=True, stream=True)
        seen: list[Any] = []
        async for event in opened:
            seen.append(event)
            if len(seen) == 3:
                break
        await opened.close()
        response_id = seen[0].response.id
        resumed = await self.responses.retrieve(response_id, stream=True, starting_after=2)
        seen += [event async for event in resumed]
        self.assertEqual([event.sequence_number for event in seen], list(range(len(seen))))
        self.assertEqual(seen[-1].response.output_text, "one two three four five six")

    async def test_twenty_at_once_are_not_mixed_up(self) -> None:
        async def converse(number: int) -> str:
            made = await self.client.conversations.create()
            for text in (f"Remember this word: w{number}x.", ASK):
                answer = await self.responses.create(model=MODEL, input=text, conversation=made.id)
            items = [item async for item in self.client.conversations.items.list(made.id, limit=3)]
            self.assertEqual(len(items), 4)
            return answer.output_text

        texts = await asyncio.gather(*map(converse, range(20)))
        self.assertEqual(texts, [f"The word is w{number}x." for number in range(20)])

    async def test_a_cancelled_background_stream_ends(self) -> None:
        opened = await self.responses.create(model=MODEL, input="hang", background=True, stream=True)
        events = aiter(opened)
        created: Any = await anext(events)
        self.assertEqual((await self.responses.cancel(created.response.id)).status, "cancelled")
        last: Any = [event async for event in events][-1]
        self.assertEqual((last.type, last.response.status), ("response.failed", "cancelled"))

    async def test_a_stream_that_is_left_leaves_the_client_usable(self) -> None:
        async with await self.responses.create(model=MODEL, input="hang", stream=True) as opened:
            self.assertEqual((await anext(aiter(opened))).type, "response.created")
        self.assertEqual((await self.responses.create(model=MODEL, input=PLANT)).status, "completed")


class TestThreads(unittest.TestCase):
    """One client, many threads, as web frameworks use it."""

    def test_one_client_serves_many_threads(self) -> None:
        texts: dict[int, str] = {}
        with OpenAI(base_url=URL, api_key="none", max_retries=0, timeout=WAIT_S) as client:

            def work(number: int) -> None:
                planted = client.responses.create(model=MODEL, input=f"Remember this word: w{number}x.")
                with client.responses.stream(
                    model=MODEL, input=ASK, previous_response_id=planted.id
                ) as stream:
                    texts[number] = stream.get_final_response().output_text

            threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(WAIT_S)
        self.assertEqual(texts, {number: f"The word is w{number}x." for number in range(8)})


if __name__ == "__main__":
    unittest.main()
