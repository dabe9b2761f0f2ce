// openai-node while its server stops: the running response ends, and the connection's end says that it may come back.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { ResponsesWebSocketSession } from "openai/lib/responses/responses-websocket-session";
import { ResponsesWS } from "openai/resources/responses/ws";

const { SERVER_URL: baseURL, SERVER_PID } = process.env;

test("a response that runs when the server is stopped ends, over HTTP and over a WebSocket", async () => {
  const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 30_000 });
  const socket = new ResponsesWS(client);
  const closed = new Promise((resolve) => {
    socket.on("close", (code) => resolve(code));
  });
  for await (const message of socket.stream()) if (message.type === "open") break;
  const limits = { maxLanes: 1, maxBufferedEvents: 1000, maxBufferedBytes: 1_000_000 };
  const lane = new ResponsesWebSocketSession(socket, limits).lane();
  lane.create({ model: "scripted", store: false, input: "slowly" });
  const stream = client.responses.stream({ model: "scripted", input: "slowly" });
  await Promise.all([stream.emitted("response.output_text.delta"), seeDelta(lane)]);
  process.kill(Number(SERVER_PID), "SIGTERM");
  const signal = AbortSignal.timeout(30_000);
  const [one, two] = await Promise.all([stream.finalResponse(), lane.finalResponse({ signal })]);
  for (const final of [one, two]) {
    assert.equal(final.status, "completed");
    assert.equal(final.output_text, "one two three four five six");
  }
  assert.equal(await closed, 1012);
});

async function seeDelta(lane) {
  for (;;) {
    const event = await lane.receive({ signal: AbortSignal.timeout(30_000) });
    if (event.type === "response.output_text.delta") return;
  }
}
