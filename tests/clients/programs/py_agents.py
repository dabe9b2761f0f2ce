"""openai-agents against a server: tools, handoffs, structured output, each way to keep state, and its WebSocket."""

import asyncio
import os
import unittest
from typing import Any

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIProvider,
    RunConfig,
    Runner,
    SQLiteSession,
    ToolCallOutputItem,
    function_tool,
    responses_websocket_session,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

URL = os.environ["SERVER_URL"]
MODEL = os.environ.get("MODEL", "scripted")
PLANT = "Remember this word: marmalade."
ASK = "What was the word?"
WEATHER = "Use get_weather for Oslo."
set_tracing_disabled(True)


class Word(BaseModel):
    """What an agent has to answer."""

    word: str


class AgentTest(unittest.IsolatedAsyncioTestCase):
    """A client, a tool that counts its calls, and an agent that has it."""

    async def asyncSetUp(self) -> None:
        self.client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0, timeout=30)
        self.addAsyncCleanup(self.client.close)
        self.config = RunConfig(
            model_provider=OpenAIProvider(openai_client=self.client), tracing_disabled=True
        )
        self.asked: list[str] = []

        @function_tool
        def get_weather(city: str) -> str:
            """The weather of a city."""
            self.asked.append(city)
            return f"{len(city)} degrees in {city}"

        self.agent = Agent(name="Guide", instructions="Be brief.", model=MODEL, tools=[get_weather])

    async def run_agent(self, text: str, *, streamed: bool = False, agent: Any = None, **options: Any) -> Any:
        """The result of a run, whose stream is read to its end if there is one."""
        starting = agent or self.agent
        if not streamed:
            return await Runner.run(starting, text, run_config=self.config, **options)
        result = Runner.run_streamed(starting, text, run_config=self.config, **options)
        deltas = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                deltas += event.data.delta
        self.assertTrue(deltas.endswith(str(result.final_output)), deltas)
        return result


class TestRuns(AgentTest):
    """What an agent does in one run."""

    async def test_a_tool_is_run_once_and_its_output_is_the_answer(self) -> None:
        for streamed in (False, True):
            with self.subTest(streamed=streamed):
                self.asked.clear()
                result = await self.run_agent(WEATHER, streamed=streamed)
                self.assertEqual(self.asked, ["Oslo"])
                self.assertIn("4 degrees in Oslo", result.final_output)
                self.assertGreater(result.context_wrapper.usage.input_tokens, 0)
                self.assertEqual(result.context_wrapper.usage.requests, 2)

    async def test_parallel_calls_are_all_answered(self) -> None:
        for streamed in (False, True):
            with self.subTest(streamed=streamed):
                self.asked.clear()
                result = await self.run_agent("both cities", streamed=streamed)
                self.assertEqual(sorted(self.asked), ["Bergen", "Oslo"])
                outputs = [item for item in result.new_items if isinstance(item, ToolCallOutputItem)]
                self.assertEqual(len(outputs), 2)
                self.assertIn("4 degrees in Oslo", result.final_output)
                self.assertIn("6 degrees in Bergen", result.final_output)

    async def test_a_handoff_changes_the_agent(self) -> None:
        poet = Agent(name="Poet", model=MODEL, instructions="Rhyme.")
        desk = Agent(name="Desk", model=MODEL, handoffs=[poet])
        for streamed in (False, True):
            with self.subTest(streamed=streamed):
                result = await self.run_agent(
                    "My name is Ada. Use transfer_to_poet now.", streamed=streamed, agent=desk
                )
                self.assertEqual(result.last_agent.name, "Poet")
                self.assertIn("Ada", result.final_output)

    async def test_an_output_type_is_filled(self) -> None:
        agent = Agent(name="Filler", model=MODEL, output_type=Word)
        planted = await self.run_agent(PLANT, agent=self.agent)
        result = await self.run_agent(ASK, agent=agent, previous_response_id=planted.last_response_id)
        self.assertEqual(result.final_output, Word(word="marmalade"))

    async def test_a_demanded_tool_is_called(self) -> None:
        agent = self.agent.clone(model_settings=ModelSettings(tool_choice="get_weather"))
        result = await self.run_agent("I am in Tromso.", agent=agent)
        self.assertEqual(len(self.asked), 1)
        self.assertIn("degrees in", result.final_output)

    async def test_an_agent_can_be_a_tool_and_reason(self) -> None:
        inner = Agent(name="Thinker", model=MODEL)
        tool = inner.as_tool(tool_name="ponder", tool_description="Ponders.", run_config=self.config)
        outer = Agent(name="Boss", model=MODEL, tools=[tool])
        result = await self.run_agent('Use ponder for "think hard".', agent=outer)
        self.assertIn("ponder returned", result.final_output)
        thought = await self.run_agent("think", previous_response_id=result.last_response_id)
        self.assertEqual(thought.final_output, "Thought.")
        self.assertIn("reasoning_item", [item.type for item in thought.new_items])

    async def test_a_refused_model_raises_the_packages_error(self) -> None:
        for streamed in (False, True):
            with self.subTest(streamed=streamed), self.assertRaises(openai.BadRequestError) as caught:
                await self.run_agent("x", streamed=streamed, agent=self.agent.clone(model="nobody"))
            self.assertEqual(caught.exception.code, "model_not_found")


class TestState(AgentTest):
    """The ways to go on: a conversation, an id, the whole history."""

    async def test_a_conversation_session_remembers(self) -> None:
        session = OpenAIConversationsSession(openai_client=self.client)
        await self.run_agent(PLANT, session=session)
        tool = await self.run_agent(WEATHER, session=session, streamed=True)
        self.assertEqual(self.asked, ["Oslo"])
        self.assertIn("4 degrees", tool.final_output)
        answer = await self.run_agent(ASK, session=session)
        self.assertEqual(answer.final_output, "The word is marmalade.")

        items: Any = await session.get_items()
        kinds = [item["type"] for item in items]
        call = ["message", "function_call", "function_call_output", "message"]
        self.assertEqual(kinds, ["message"] * 2 + call + ["message"] * 2)
        conversation = await self.client.conversations.retrieve(session.session_id)
        self.assertEqual(conversation.object, "conversation")
        self.assertEqual(await session.get_items(limit=3), items[-3:])
        self.assertEqual(await session.get_items(limit=0), [])

        popped: Any = await session.pop_item()
        self.assertEqual(popped, items[-1])
        self.assertEqual(popped["content"][0]["text"], "The word is marmalade.")
        self.assertEqual(await session.get_items(), items[:-1])
        again = OpenAIConversationsSession(conversation_id=session.session_id, openai_client=self.client)
        self.assertEqual(await again.get_items(), items[:-1])

        gone = session.session_id
        await session.clear_session()
        with self.assertRaises(openai.NotFoundError):
            await self.client.conversations.retrieve(gone)
        self.assertEqual(await session.get_items(), [])
        self.assertNotEqual(session.session_id, gone)
        fresh = await self.run_agent(ASK, session=session)
        self.assertEqual(fresh.final_output, "I do not know.")
        self.assertIsNotNone(await session.pop_item())

    async def test_a_session_takes_and_pages_many_items(self) -> None:
        session = OpenAIConversationsSession(openai_client=self.client)
        many: Any = [{"role": "user", "content": f"Number {number}."} for number in range(45)]
        await session.add_items(many)
        items: Any = await session.get_items()
        self.assertEqual([item["content"][0]["text"] for item in items], [f"Number {n}." for n in range(45)])
        self.assertEqual(await session.get_items(limit=30), items[-30:])
        popped = [await session.pop_item() for _ in range(3)]
        self.assertEqual(popped, items[:-4:-1])

    async def test_sessions_at_once_are_not_mixed_up(self) -> None:
        async def converse(number: int) -> str:
            session = OpenAIConversationsSession(openai_client=self.client)
            await self.run_agent(f"Remember this word: w{number}x.", session=session)
            return str((await self.run_agent(ASK, session=session)).final_output)

        texts = await asyncio.gather(*map(converse, range(8)))
        self.assertEqual(texts, [f"The word is w{number}x." for number in range(8)])

    async def test_a_run_goes_on_in_a_conversation_by_its_id(self) -> None:
        conversation = await self.client.conversations.create()
        for text in (PLANT, WEATHER):
            await self.run_agent(text, conversation_id=conversation.id)
        self.assertEqual(self.asked, ["Oslo"])
        answer = await self.run_agent(ASK, conversation_id=conversation.id, streamed=True)
        self.assertEqual(answer.final_output, "The word is marmalade.")
        page = self.client.conversations.items.list(conversation.id)
        self.assertEqual(len([item async for item in page]), 8)

    async def test_a_run_goes_on_by_the_id_of_a_response(self) -> None:
        for streamed in (False, True):
            with self.subTest(streamed=streamed):
                self.asked.clear()
                first = await self.run_agent(PLANT, streamed=streamed)
                second = await self.run_agent(
                    WEATHER, previous_response_id=first.last_response_id, streamed=streamed
                )
                third = await self.run_agent(
                    ASK, previous_response_id=second.last_response_id, streamed=streamed
                )
                self.assertEqual(self.asked, ["Oslo"])
                self.assertEqual(third.final_output, "The word is marmalade.")
                path = self.client.responses.input_items.list(third.last_response_id, order="asc")
                self.assertEqual(len([item async for item in path]), 7)

    async def test_chaining_within_a_run_is_by_itself(self) -> None:
        for streamed in (False, True):
            with self.subTest(streamed=streamed):
                result = await self.run_agent(WEATHER, auto_previous_response_id=True, streamed=streamed)
                first, last = result.raw_responses
                stored = await self.client.responses.retrieve(last.response_id)
                self.assertEqual(stored.previous_response_id, first.response_id)
                self.assertIn("4 degrees", result.final_output)

    async def test_a_local_session_resends_everything(self) -> None:
        session = SQLiteSession("one")
        agent = self.agent.clone(model_settings=ModelSettings(store=False))
        for text in (PLANT, WEATHER, "think"):
            await self.run_agent(text, agent=agent, session=session)
        answer = await self.run_agent(ASK, agent=agent, session=session)
        self.assertEqual(answer.final_output, "The word is marmalade.")
        session.close()


class TestSocket(AgentTest):
    """The package's WebSocket session."""

    async def test_runs_share_a_connection(self) -> None:
        async with responses_websocket_session(api_key="none", base_url=URL) as session:
            first = await session.run(self.agent, PLANT)
            second = await session.run(self.agent, WEATHER, previous_response_id=first.last_response_id)
            self.assertEqual(self.asked, ["Oslo"])
            self.assertIn("4 degrees in Oslo", second.final_output)
            streamed = session.run_streamed(self.agent, ASK, previous_response_id=second.last_response_id)
            kinds = [event.type async for event in streamed.stream_events()]
            self.assertIn("raw_response_event", kinds)
            self.assertEqual(streamed.final_output, "The word is marmalade.")
        stored = await self.client.responses.retrieve(streamed.last_response_id)
        self.assertEqual(stored.output_text, "The word is marmalade.")

    async def test_what_is_not_stored_is_continued(self) -> None:
        agent = self.agent.clone(model_settings=ModelSettings(store=False))
        async with responses_websocket_session(api_key="none", base_url=URL) as session:
            first = await session.run(agent, PLANT)
            second = await session.run(
                agent,
                "both cities",
                previous_response_id=first.last_response_id,
                auto_previous_response_id=True,
            )
            self.assertEqual(sorted(self.asked), ["Bergen", "Oslo"])
            third = await session.run(agent, ASK, previous_response_id=second.last_response_id)
            self.assertEqual(third.final_output, "The word is marmalade.")
        with self.assertRaises(openai.NotFoundError):
            await self.client.responses.retrieve(third.last_response_id)

    async def test_a_conversation_and_a_handoff_over_it(self) -> None:
        memory = OpenAIConversationsSession(openai_client=self.client)
        poet = Agent(name="Poet", model=MODEL)
        desk = Agent(name="Desk", model=MODEL, handoffs=[poet])
        async with responses_websocket_session(api_key="none", base_url=URL) as session:
            await session.run(self.agent, PLANT, session=memory)
            handed = await session.run(desk, "Use transfer_to_poet now.", session=memory)
            self.assertEqual(handed.last_agent.name, "Poet")
            asked = await session.run(self.agent, ASK, session=memory)
            self.assertEqual(asked.final_output, "The word is marmalade.")

    async def test_a_refusal_is_an_error_and_the_session_goes_on(self) -> None:
        async with responses_websocket_session(api_key="none", base_url=URL) as session:
            with self.assertRaises(Exception) as caught:
                await session.run(self.agent, ASK, previous_response_id="resp_0")
            self.assertIn("previous_response_not_found", str(vars(caught.exception)) + str(caught.exception))
            self.assertEqual((await session.run(self.agent, PLANT)).final_output, "Noted: marmalade.")

    async def test_structured_output_and_agents_at_once(self) -> None:
        filler = Agent(name="Filler", model=MODEL, output_type=Word)
        async with responses_websocket_session(api_key="none", base_url=URL) as session:
            results = await asyncio.gather(
                *(session.run(filler, f"The word is w{number}x.") for number in range(4))
            )
        self.assertEqual([result.final_output for result in results], [Word(word=f"w{n}x") for n in range(4)])


class TestUpstream(AgentTest):
    """Three runs with two tools each, in the way that `HOW` names; the model server's record is checked elsewhere."""

    async def test_runs_go_on(self) -> None:
        how = os.environ["HOW"]
        options: dict[str, Any] = {}
        if how == "session":
            options["session"] = OpenAIConversationsSession(openai_client=self.client)
        elif how == "id":
            options["auto_previous_response_id"] = True
        async with responses_websocket_session(api_key="none", base_url=URL) as session:
            unstored = self.agent.clone(model_settings=ModelSettings(store=False))
            for number in range(3):
                text = f"Task {number}."
                if how == "socket":
                    result = await session.run(unstored, text, auto_previous_response_id=True, **options)
                else:
                    result = await self.run_agent(text, streamed=number == 1, **options)
                self.assertEqual(result.final_output, "All done.")
                if how != "session":
                    options["previous_response_id"] = result.last_response_id
        self.assertEqual(self.asked, ["Oslo", "Bergen"] * 3)


if __name__ == "__main__":
    unittest.main()
