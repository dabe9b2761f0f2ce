"""openai-python over a WebSocket: `responses.connect()`, blocking and asynchronous, and its ways to connect again."""

import os
import signal
import unittest
from itertools import pairwise
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI
from websockets.exceptions import ConnectionClosed, InvalidStatus

URL = os.environ["SERVER_URL"]
KEY = os.environ.get("RIGHT", "none")
PLANT = "Remember this word: marmalade."
ASK = "What was the word?"
MODEL = "scripted"
WAIT_S = 30
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
ENDS = ("response.completed", "response.failed", "response.incomplete", "error")


def collect(connection: Any) -> list[Any]:
    """The events of one response, or the error."""
    events = []
    for event in connection:
        events.append(event)
        if event.type in ENDS:
            return events
    raise AssertionError(f"closed after {events}")


def ask(connection: Any, **request: Any) -> Any:
    """One response, asked for and waited for."""
    connection.response.create(model=MODEL, **request)
    last = collect(connection)[-1]
    assert last.type != "error", last
    return last.response


def refuse(connection: Any, **request: Any) -> dict[str, Any]:
    """The error frame of a request that is refused."""
    connection.response.create(**{"model": MODEL, **request})
    (error,) = collect(connection)
    found: dict[str, Any] = error.to_dict()
    assert found["type"] == "error", found
    return found


class TestSync(unittest.TestCase):
    """The blocking connection."""

    def setUp(self) -> None:
        self.client = OpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=WAIT_S)
        self.addCleanup(self.client.close)

    def test_what_is_not_stored_is_continued_here_and_nowhere_else(self) -> None:
        with self.client.responses.connect() as connection:
            planted = ask(connection, input=PLANT, store=False)
            asked = ask(connection, input=ASK, store=False, previous_response_id=planted.id)
            self.assertEqual(asked.output_text, "The word is marmalade.")
            self.assertEqual((asked.previous_response_id, asked.store), (planted.id, False))
            with self.assertRaises(openai.NotFoundError):
                self.client.responses.retrieve(asked.id)
            with self.client.responses.connect() as other:
                error = refuse(other, input=ASK, store=False, previous_response_id=asked.id)
            self.assertEqual(error["status"], 400)
            self.assertEqual(error["error"]["code"], "previous_response_not_found")
            self.assertEqual(error["error"]["param"], "previous_response_id")

    def test_events_are_those_of_a_stream(self) -> None:
        request: Any = {"model": MODEL, "input": "think", "reasoning": {"summary": "auto"}}
        streamed = [event.type for event in self.client.responses.create(**request, stream=True)]
        with self.client.responses.connect() as connection:
            connection.response.create(**request)
            events = collect(connection)
        self.assertEqual([event.type for event in events], streamed)
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        self.assertEqual(self.client.responses.retrieve(events[-1].response.id), events[-1].response)

    def test_a_tool_loop_sends_only_what_is_new(self) -> None:
        with self.client.responses.connect() as connection:
            first = ask(connection, input="Use get_weather for Paris.", tools=[TOOL], store=False)
            (call,) = first.output
            output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
            second = ask(connection, input=[output], tools=[TOOL], store=False, previous_response_id=first.id)
            self.assertIn("18 degrees", second.output_text)
            self.assertGreater(second.usage.input_tokens, first.usage.input_tokens)

    def test_errors_leave_the_connection_open(self) -> None:
        with self.client.responses.connect() as connection:
            self.assertEqual(refuse(connection, input=[])["error"]["code"], "missing_required_parameter")
            self.assertEqual(
                refuse(connection, input="x", model="nobody")["error"]["code"], "model_not_found"
            )
            connection.send({"type": "response.create", "model": MODEL, "input": "x", "sotre": True})
            self.assertEqual(collect(connection)[-1].to_dict()["error"]["param"], "sotre")
            connection.send_raw("not JSON")
            self.assertEqual(collect(connection)[-1].to_dict()["status"], 400)
            self.assertEqual(refuse(connection, input="refuse 429")["status"], 429)
            connection.response.create(model=MODEL, input="break", store=False)
            last = collect(connection)[-1]
            self.assertEqual((last.type, last.response.error.message), ("response.failed", "Boom."))
            self.assertEqual(ask(connection, input=PLANT).output_text, "Noted: marmalade.")

    def test_a_failed_continuation_forgets_its_parent(self) -> None:
        with self.client.responses.connect() as connection:
            planted = ask(connection, input=PLANT, store=False)
            connection.response.create(
                model=MODEL, input="break", store=False, previous_response_id=planted.id
            )
            self.assertEqual(collect(connection)[-1].type, "response.failed")
            error = refuse(connection, input=ASK, store=False, previous_response_id=planted.id)
            self.assertEqual(error["error"]["code"], "previous_response_not_found")

    def test_a_warm_up_is_continued_and_a_stored_response_too(self) -> None:
        stored = self.client.responses.create(model=MODEL, input=PLANT)
        with self.client.responses.connect() as connection:
            connection.response.create(model=MODEL, input=[], store=False, generate=False)
            warm = collect(connection)[-1].response
            self.assertEqual((warm.status, warm.output, warm.usage.total_tokens), ("completed", [], 0))
            first = ask(connection, input=PLANT, store=False, previous_response_id=warm.id)
            self.assertEqual(first.output_text, "Noted: marmalade.")
            asked = ask(connection, input=ASK, previous_response_id=stored.id)
            self.assertEqual(asked.output_text, "The word is marmalade.")
        self.assertEqual(self.client.responses.retrieve(asked.id), asked)

    def test_lanes_run_at_once(self) -> None:
        order: list[str] = []
        texts: dict[str, str] = {}
        with self.client.responses.connect() as connection:
            for lane in ("one", "two"):
                connection.response.create(model=MODEL, input="slowly", store=False, stream_id=lane)
            for event in connection:
                lane = event.to_dict()["stream_id"]
                order.append(lane)
                if event.type == "response.completed":
                    texts[lane] = event.response.output_text
                    if len(texts) == 2:
                        break
        self.assertEqual(texts, dict.fromkeys(("one", "two"), "one two three four five six"))
        self.assertGreater(sum(a != b for a, b in pairwise(order)), 2)

    def test_handlers_get_events_and_errors(self) -> None:
        deltas: list[str] = []
        errors: list[Any] = []
        manager = self.client.responses.connect()
        manager.send({"type": "response.create", "model": "nobody", "input": "x"})
        manager.send({"type": "response.create", "model": MODEL, "input": PLANT})
        manager.on("response.output_text.delta", lambda event: deltas.append(event.delta))
        manager.on("error", errors.append)
        with manager as connection:
            connection.on("response.completed", lambda _: connection.close())
            connection.dispatch_events()
        self.assertEqual("".join(deltas), "Noted: marmalade.")
        self.assertEqual(len(errors), 1)

    def test_steering_is_refused_by_name(self) -> None:
        with self.client.responses.connect() as connection:
            planted = ask(connection, input=PLANT)
            connection.response.steer(input="Stop.", previous_response_id=planted.id)
            event = connection.recv()
            self.assertEqual(event.type, "response.steer.failed")
            self.assertEqual(event.error.code, "steering_not_supported")


class TestAsync(unittest.IsolatedAsyncioTestCase):
    """The asynchronous connection."""

    async def asyncSetUp(self) -> None:
        self.client = AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=WAIT_S)
        self.addAsyncCleanup(self.client.close)

    async def ask(self, connection: Any, **request: Any) -> Any:
        """The last event of one response."""
        await connection.response.create(model=MODEL, **request)
        async for event in connection:
            if event.type in ENDS:
                return event
        raise AssertionError("closed")

    async def test_five_rounds_that_are_not_stored(self) -> None:
        async with self.client.responses.connect() as connection:
            parent = None
            for number in range(5):
                event = await self.ask(
                    connection,
                    input=f"Remember this word: w{number}x.",
                    store=False,
                    previous_response_id=parent,
                )
                parent = event.response.id
            asked = await self.ask(
                connection, input="Which words were all told?", store=False, previous_response_id=parent
            )
            self.assertEqual(asked.response.output_text, "w0x, w1x, w2x, w3x, w4x")
            error = await self.ask(connection, input=ASK, store=False, previous_response_id="resp_0")
            self.assertEqual(error.to_dict()["error"]["code"], "previous_response_not_found")

    async def test_a_connection_is_closed_in_the_middle_of_a_response(self) -> None:
        async with self.client.responses.connect() as connection:
            await connection.response.create(model=MODEL, input="hang", store=False)
            self.assertEqual((await connection.recv()).type, "response.created")
        async with self.client.responses.connect() as connection:
            event = await self.ask(connection, input=PLANT)
            self.assertEqual(event.response.output_text, "Noted: marmalade.")


class TestReconnect(unittest.TestCase):
    """The network breaks in the middle of a response, once."""

    def test_a_broken_connection_is_opened_again_and_the_question_asked_again(self) -> None:
        with OpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=WAIT_S) as client:
            closings: list[int] = []
            stored = client.responses.create(model=MODEL, input=PLANT)

            def ask_again(event: Any) -> None:
                closings.append(event.close_code)
                connection.response.create(model=MODEL, input=ASK, previous_response_id=stored.id)

            with client.responses.connect(on_reconnecting=ask_again, initial_delay=0.01) as connection:
                unstored = ask(connection, input=PLANT, store=False)
                connection.response.create(model=MODEL, input="slowly", store=False)
                events = collect(connection)
                self.assertEqual(closings, [1006])
                self.assertEqual(events[-1].response.output_text, "The word is marmalade.")
                self.assertEqual([event.type for event in events].count("response.created"), 2)
                error = refuse(connection, input=ASK, store=False, previous_response_id=unstored.id)
                self.assertEqual(error["error"]["code"], "previous_response_not_found")


class TestStop(unittest.TestCase):
    """The server is asked to stop in the middle of a response."""

    def test_the_response_ends_and_then_the_connection(self) -> None:
        with OpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=WAIT_S) as client:
            closings: list[int] = []

            def note(event: Any) -> Any:
                closings.append(event.close_code)
                return {"abort": True}

            with client.responses.connect(on_reconnecting=note) as connection:
                connection.response.create(model=MODEL, input="slowly", store=False)
                last = None
                with self.assertRaises(ConnectionClosed):
                    for event in connection:
                        if event.type == "response.created":
                            os.kill(int(os.environ["SERVER_PID"]), signal.SIGTERM)
                        last = event
                self.assertEqual(last.type, "response.completed")
                self.assertEqual(last.response.output_text, "one two three four five six")
                self.assertEqual(closings, [1012])


class TestKeys(unittest.TestCase):
    """A server with keys, and without WebSocket."""

    def test_refused_upgrades_say_why_and_http_goes_on(self) -> None:
        expected = int(os.environ["EXPECTED"])
        with OpenAI(base_url=URL, api_key=os.environ["KEY"], max_retries=0, timeout=WAIT_S) as client:
            with self.assertRaises(InvalidStatus) as caught, client.responses.connect():
                pass
            self.assertEqual(caught.exception.response.status_code, expected)
            if expected == 401:
                with self.assertRaises(openai.AuthenticationError):
                    client.responses.create(model=MODEL, input=PLANT)
            else:
                self.assertEqual(client.responses.create(model=MODEL, input=PLANT).status, "completed")


class TestRightKey(unittest.TestCase):
    """The right key opens the connection."""

    def test_the_right_key_is_let_in(self) -> None:
        with OpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=WAIT_S) as client:
            with client.responses.connect() as connection:
                self.assertEqual(ask(connection, input=PLANT).output_text, "Noted: marmalade.")
            self.assertEqual([model.id for model in client.models.list()], [MODEL])


if __name__ == "__main__":
    unittest.main()
