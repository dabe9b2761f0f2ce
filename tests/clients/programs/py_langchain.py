"""LangChain's `ChatOpenAI` over the Responses API, against a server of the scripted model."""

import os
import unittest
from typing import Any

import openai
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

URL = os.environ["SERVER_URL"]
PLANT = "Remember this word: marmalade."
ASK = "What was the word?"
ASKED: list[str] = []


class Word(BaseModel):
    """What was asked for."""

    word: str


class Place(BaseModel):
    """Where something happens."""

    city: str


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    ASKED.append(city)
    return f"{len(city)} degrees in {city}"


def make_chat(**options: Any) -> ChatOpenAI:
    """The model as an application makes it."""
    return ChatOpenAI(
        model="scripted",
        base_url=URL,
        api_key="none",
        use_responses_api=True,
        max_retries=0,
        timeout=30,
        **options,
    )


def read_text(message: Any) -> str:
    """The text of a message."""
    return str(message.text)


class TestChat(unittest.TestCase):
    """Messages, tools, and formats."""

    def setUp(self) -> None:
        ASKED.clear()

    def test_a_history_is_sent_back_as_it_came(self) -> None:
        for store in (True, False):
            with self.subTest(store=store):
                chat = make_chat(store=store)
                history: list[Any] = [HumanMessage(PLANT)]
                history += [chat.invoke(history), HumanMessage("think")]
                history += [chat.invoke(history), HumanMessage(ASK)]
                answer = chat.invoke(history)
                self.assertEqual(read_text(answer), "The word is marmalade.")
                self.assertGreater(answer.usage_metadata["input_tokens"], 0)
                self.assertTrue(answer.response_metadata["id"].startswith("resp_"))

    def test_only_what_is_new_is_sent(self) -> None:
        chat = make_chat(use_previous_response_id=True)
        history: list[Any] = [HumanMessage(PLANT)]
        history += [chat.invoke(history), HumanMessage(ASK)]
        answer = chat.invoke(history)
        self.assertEqual(read_text(answer), "The word is marmalade.")
        with openai.OpenAI(base_url=URL, api_key="none") as client:
            stored = client.responses.retrieve(answer.response_metadata["id"])
        self.assertEqual(stored.previous_response_id, history[1].response_metadata["id"])

    def test_a_stream_adds_up(self) -> None:
        for text in (PLANT, "think"):
            with self.subTest(text):
                chunks = list(make_chat().stream(text))
                self.assertGreater(sum(bool(read_text(chunk)) for chunk in chunks), 0)
                total = chunks[0]
                for chunk in chunks[1:]:
                    total = total + chunk
                self.assertEqual(read_text(total), read_text(make_chat().invoke(text)))
                self.assertGreater(total.usage_metadata["output_tokens"], 0)

    def test_tools_are_called_and_answered(self) -> None:
        for previous in (False, True):
            for streamed in (False, True):
                with self.subTest(previous=previous, streamed=streamed):
                    ASKED.clear()
                    chat: Any = make_chat(use_previous_response_id=previous, streaming=streamed)
                    chat = chat.bind_tools([get_weather])
                    history: list[Any] = [HumanMessage("both cities")]
                    called = chat.invoke(history)
                    self.assertIsInstance(called, AIMessage)
                    self.assertEqual([call["args"]["city"] for call in called.tool_calls], ["Oslo", "Bergen"])
                    outputs = [get_weather.invoke(call) for call in called.tool_calls]
                    self.assertIsInstance(outputs[0], ToolMessage)
                    answer = chat.invoke([*history, called, *outputs])
                    self.assertIn("4 degrees in Oslo", read_text(answer))
                    self.assertIn("6 degrees in Bergen", read_text(answer))
                    self.assertEqual(ASKED, ["Oslo", "Bergen"])

    def test_formats_are_filled(self) -> None:
        planted = [HumanMessage(PLANT), HumanMessage(ASK)]
        for method in ("json_schema", "function_calling"):
            with self.subTest(method):
                filled = make_chat().with_structured_output(Place, method=method)
                self.assertEqual(filled.invoke([HumanMessage("It rains in Oslo.")]), Place(city="Oslo"))
        self.assertEqual(make_chat().with_structured_output(Word).invoke(planted), Word(word="marmalade"))

    def test_an_agent_runs_its_tools(self) -> None:
        agent = create_agent(make_chat(), tools=[get_weather])
        result = agent.invoke({"messages": [HumanMessage("both cities")]})
        self.assertEqual(sorted(ASKED), ["Bergen", "Oslo"])
        self.assertIn("6 degrees in Bergen", read_text(result["messages"][-1]))

    def test_refusals_are_the_sdks_errors(self) -> None:
        with self.assertRaises(openai.BadRequestError) as caught:
            make_chat().invoke("x", previous_response_id="resp_0")
        self.assertEqual(caught.exception.code, "previous_response_not_found")


class TestAsync(unittest.IsolatedAsyncioTestCase):
    """The asynchronous methods."""

    async def test_messages_are_answered_and_streamed(self) -> None:
        chat = make_chat(use_previous_response_id=True)
        history: list[Any] = [HumanMessage(PLANT)]
        history += [await chat.ainvoke(history), HumanMessage(ASK)]
        texts = [read_text(chunk) async for chunk in chat.astream(history)]
        self.assertEqual("".join(texts), "The word is marmalade.")


if __name__ == "__main__":
    unittest.main()
