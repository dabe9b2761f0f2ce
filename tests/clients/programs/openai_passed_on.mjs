// openai-node before a server that passes on what a third one made: items of kinds that no chat model makes.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { ResponsesWebSocketAccumulator } from "openai/lib/responses/responses-websocket-accumulator";
import { ResponsesWebSocketSession } from "openai/lib/responses/responses-websocket-session";
import { ResponsesWS } from "openai/resources/responses/ws";

const { SERVER_URL: baseURL, MODEL: model, EXPECTED } = process.env;
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 30_000 });
const REQUEST = {
  model,
  input: "Go.",
  tools: [
    { type: "file_search", vector_store_ids: ["vs_1"] },
    { type: "code_interpreter", container: { type: "auto" } },
    { type: "image_generation" },
  ],
};
const TYPES = ["reasoning", "file_search_call", "code_interpreter_call", "image_generation_call", "message"];

/** The events inside of items, in the order in which the third server sent them. */
function listInner(events) {
  return events
    .map((event) => event.type)
    .filter((type) => !/^response\.(created|in_progress|completed|output_item\..*)$/.test(type));
}

test("a stream of them is accumulated to what is stored", async () => {
  const stream = client.responses.stream(REQUEST);
  const events = [];
  for await (const event of stream) events.push(event);
  const final = await stream.finalResponse();
  assert.deepEqual(final.output.map((item) => item.type), TYPES);
  assert.deepEqual(listInner(events), JSON.parse(EXPECTED));
  const read = await client.responses.retrieve(final.id);
  assert.deepEqual(read.output.map((item) => item.id), final.output.map((item) => item.id));
  assert.equal(read.output_text, "Done.");
});

test("over a WebSocket too", async () => {
  const socket = new ResponsesWS(client);
  for await (const message of socket.stream()) if (message.type === "open") break;
  const limits = { maxLanes: 1, maxBufferedEvents: 1000, maxBufferedBytes: 1_000_000 };
  const lane = new ResponsesWebSocketSession(socket, limits).lane();
  lane.create({ ...REQUEST, store: false });
  const accumulator = new ResponsesWebSocketAccumulator();
  const events = [];
  let provisional;
  while (accumulator.current?.phase !== "terminal") {
    const event = await lane.receive({ signal: AbortSignal.timeout(30_000) });
    events.push(event);
    accumulator.add(event);
    assert.notEqual(accumulator.current.phase, "unavailable", accumulator.current.error?.message);
    provisional = accumulator.current.snapshot ?? provisional;
  }
  socket.close();
  assert.deepEqual(listInner(events), JSON.parse(EXPECTED));
  assert.deepEqual(provisional.output.map((item) => item.type), TYPES);
  assert.deepEqual(provisional.output, events.at(-1).response.output);
});
