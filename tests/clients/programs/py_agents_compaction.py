"""openai-agents with `OpenAIResponsesCompactionSession`, in each of its modes, and an agent whose server compacts."""

import os
import unittest
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIProvider,
    OpenAIResponsesCompactionSession,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

URL = os.environ["SERVER_URL"]
#: The session takes no other names than those of OpenAI's models.
MODEL = os.environ.get("MODEL", "gpt-scripted")
MODES = os.environ.get("MODES", "auto,input,previous_response_id").split(",")
PLANT = "Remember this word: marmalade."
ASK = "What was the word?"
KNOWN = "The word is marmalade."
WEATHER = "Use get_weather for Oslo."
#: Each adds a call, its output and an answer; the session compacts once there are ten such items.
RUNS = 4
set_tracing_disabled(True)


def list_types(items: list[Any]) -> list[str]:
    """What a session holds: types of items, users' messages by their role."""
    return ["user" if item.get("role") == "user" else item.get("type", "message") for item in items]


class AgentTest(unittest.IsolatedAsyncioTestCase):
    """A client, and an agent with a tool whose results are long."""

    async def asyncSetUp(self) -> None:
        self.client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0, timeout=30)
        self.addAsyncCleanup(self.client.close)
        self.config = RunConfig(
            model_provider=OpenAIProvider(openai_client=self.client), tracing_disabled=True
        )
        self.asked = 0

        @function_tool
        def get_weather(city: str) -> str:
            """The weather of a city."""
            self.asked += 1
            return f"{self.asked} degrees in {city}. " + "It may rain or not. " * 100

        self.agent = Agent(name="Guide", instructions="Be brief.", model=MODEL, tools=[get_weather])


class TestSession(AgentTest):
    """The session of the package."""

    def make_session(self, mode: Any) -> Any:
        underlying = SQLiteSession(f"compacted-{mode}")
        self.addCleanup(underlying.close)
        return OpenAIResponsesCompactionSession(
            f"compacted-{mode}", underlying, client=self.client, model=MODEL, compaction_mode=mode
        )

    async def run_agent(self, text: str, session: Any, *, streamed: bool = False, agent: Any = None) -> str:
        starting = agent or self.agent
        if not streamed:
            result: Any = await Runner.run(starting, text, session=session, run_config=self.config)
            return str(result.final_output)
        result = Runner.run_streamed(starting, text, session=session, run_config=self.config)
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    async def fill(self, session: Any, **options: Any) -> None:
        """Runs until the session has compacted."""
        for _ in range(RUNS):
            await self.run_agent(WEATHER, session, **options)

    async def test_a_session_is_compacted_twice_and_remembers(self) -> None:
        for mode in MODES:
            for streamed in (False, True):
                with self.subTest(mode=mode, streamed=streamed):
                    self.asked = 0
                    session = self.make_session(mode)
                    await self.run_agent(PLANT, session, streamed=streamed)
                    for number in (1, 2):
                        await self.fill(session, streamed=streamed)
                        types = list_types(await session.get_items())
                        self.assertEqual(types.count("compaction"), 1, types)
                        self.assertLess(types.count("function_call"), RUNS, types)
                        self.assertEqual(self.asked, RUNS * number)
                        self.assertEqual(await self.run_agent(ASK, session, streamed=streamed), KNOWN)
                    await session.clear_session()

    async def test_what_is_not_stored_is_compacted_from_its_items(self) -> None:
        agent = self.agent.clone(model_settings=ModelSettings(store=False))
        session = self.make_session("auto")
        await self.run_agent(PLANT, session, agent=agent)
        await self.fill(session, agent=agent)
        types = list_types(await session.get_items())
        self.assertEqual(types.count("compaction"), 1, types)
        self.assertEqual(await self.run_agent(ASK, session, agent=agent), KNOWN)

    async def test_a_session_is_compacted_when_it_is_told_to(self) -> None:
        session = self.make_session("input")
        await self.run_agent(PLANT, session)
        await self.run_agent(WEATHER, session)
        await session.run_compaction({"force": True})
        types = list_types(await session.get_items())
        self.assertEqual(types, ["user", "user", "compaction"])
        self.assertEqual(await self.run_agent(ASK, session), KNOWN)


class TestManaged(AgentTest):
    """The server compacts by itself, past a threshold that the agent's settings name."""

    async def test_a_run_goes_on_after_its_server_compacted(self) -> None:
        managed: Any = [{"type": "compaction", "compact_threshold": 1000}]
        settings = ModelSettings(context_management=managed)
        agent = self.agent.clone(model_settings=settings)
        previous: Any = None
        kinds: list[str] = []
        for text in (PLANT, *[WEATHER] * 6, ASK):
            result = await Runner.run(
                agent,
                text,
                run_config=self.config,
                previous_response_id=previous,
                auto_previous_response_id=True,
            )
            previous = result.last_response_id
            kinds += [item.type for item in result.new_items]
        self.assertIn("compaction_item", kinds)
        self.assertEqual(result.final_output, KNOWN)
        self.assertEqual(self.asked, 6)


if __name__ == "__main__":
    unittest.main()
