// openai-node over a WebSocket: its session with lanes, its accumulator, and continuation of what is not stored.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import OpenAI from "openai";
import { ResponsesWebSocketAccumulator } from "openai/lib/responses/responses-websocket-accumulator";
import { ResponsesWebSocketSession } from "openai/lib/responses/responses-websocket-session";
import { ResponsesWS } from "openai/resources/responses/ws";

const client = new OpenAI({ baseURL: process.env.SERVER_URL, apiKey: "none" });
const LIMITS = { maxLanes: 20, maxBufferedEvents: 10_000, maxBufferedBytes: 10_000_000 };
const signal = AbortSignal.timeout(30_000);
const PLANT = "Remember this word: marmalade.";
const ASK = "What was the word?";
const WEATHER = {
  type: "function",
  name: "get_weather",
  parameters: { type: "object", properties: { city: { type: "string" } }, additionalProperties: false },
  strict: false,
};
const TOOLS = {
  both: [WEATHER],
  patch: [{ type: "custom", name: "apply_patch" }],
  search: [{ type: "web_search" }],
  shell: [{ type: "shell", environment: { type: "local" } }],
  local: [{ type: "local_shell" }],
  edit: [{ type: "apply_patch" }],
  weather: [
    {
      type: "mcp",
      server_label: "home",
      server_url: process.env.MCP_URL,
      authorization: process.env.MCP_TOKEN,
      require_approval: "never",
    },
  ],
};
const opened = [];

/** A connection of its own, open, and the package's session on it. */
async function connect(options) {
  const socket = new ResponsesWS(client, options);
  // Errors are told to lanes; without a listener the package raises them a second time.
  socket.on("error", () => {});
  opened.push(socket);
  for await (const message of socket.stream()) {
    if (message.type === "open") break;
    assert.ok(message.type === "connecting", message.error?.message);
  }
  return { socket, session: new ResponsesWebSocketSession(socket, LIMITS) };
}

after(() => opened.forEach((socket) => socket.close()));

/** One response of a lane, from its request to its end. */
async function ask(lane, request) {
  lane.create({ model: "scripted", store: false, ...request });
  return await lane.finalResponse({ signal });
}

async function assertRefused(lane, request, code, param) {
  lane.create({ model: "scripted", store: false, ...request });
  await assert.rejects(lane.finalResponse({ signal }), ({ error }) => {
    assert.equal(error.status, 400);
    assert.equal(error.error.code, code);
    assert.equal(error.error.param, param);
    return true;
  });
}

const INPUTS = ["long", "decline", "think", "cut", PLANT, ...Object.keys(TOOLS)];
for (const input of INPUTS) {
  test(`the accumulator follows ${input} event by event`, async () => {
    const lane = (await connect()).session.lane();
    lane.create({ model: "scripted", store: false, input, tools: TOOLS[input], reasoning: { summary: "auto" } });
    const accumulator = new ResponsesWebSocketAccumulator();
    let provisional;
    for (let number = 0; ; number += 1) {
      const event = await lane.receive({ signal });
      assert.equal(event.sequence_number, number);
      accumulator.add(event);
      const { current } = accumulator;
      assert.notEqual(current.phase, "unavailable", current.error?.message);
      if (current.phase === "terminal") break;
      assert.equal(current.partialOutput, undefined);
      provisional = current.snapshot;
    }
    const { event } = accumulator.current;
    assert.equal(event.type, input === "cut" ? "response.incomplete" : "response.completed");
    assert.deepEqual(provisional.output, event.response.output);
    assert.ok(event.response.output.length > 0);
  });
}

test("what is not stored is continued on its connection, and on no other", async () => {
  const lane = (await connect()).session.lane();
  const planted = await ask(lane, { input: PLANT });
  assert.equal(planted.store, false);
  const asked = await ask(lane, { input: ASK, previous_response_id: planted.id });
  assert.equal(asked.output_text, "The word is marmalade.");
  assert.equal(asked.previous_response_id, planted.id);
  const other = (await connect()).session.lane();
  await assertRefused(
    other,
    { input: ASK, previous_response_id: asked.id },
    "previous_response_not_found",
    "previous_response_id",
  );
  assert.equal((await ask(other, { input: PLANT })).output_text, "Noted: marmalade.");
  await assert.rejects(client.responses.retrieve(asked.id), OpenAI.NotFoundError);
});

test("a loop of tools sends only what is new", async () => {
  const lane = (await connect()).session.lane();
  const first = await ask(lane, { input: "both", tools: [WEATHER] });
  const calls = first.output.filter((item) => item.type === "function_call");
  assert.deepEqual(calls.map((call) => JSON.parse(call.arguments).city), ["Oslo", "Bergen"]);
  const second = await ask(lane, {
    previous_response_id: first.id,
    tools: [WEATHER],
    input: calls.map(({ call_id }, number) => ({
      type: "function_call_output",
      call_id,
      output: `${number} degrees`,
    })),
  });
  assert.match(second.output_text, /0 degrees[^]*1 degrees/);
  assert.ok(second.usage.input_tokens > first.usage.input_tokens);
});

test("a failed continuation evicts what it named", async () => {
  const lane = (await connect()).session.lane();
  const planted = await ask(lane, { input: PLANT });
  lane.create({
    model: "scripted",
    store: false,
    previous_response_id: planted.id,
    input: [{ type: "function_call_output", call_id: "call_unknown", output: "x" }],
  });
  await assert.rejects(lane.finalResponse({ signal }));
  await assertRefused(
    lane,
    { input: ASK, previous_response_id: planted.id },
    "previous_response_not_found",
    "previous_response_id",
  );
});

test("lanes run at once, and one lane's response is continued on another", async () => {
  const { session, socket } = await connect();
  const order = [];
  socket.on("event", (event) => order.push(event.stream_id));
  const main = session.lane("main");
  const side = session.lane("side.1");
  main.create({ model: "scripted", store: false, input: "slowly" });
  side.create({ model: "scripted", store: false, input: "slowly" });
  const [one, two] = await Promise.all([main.finalResponse({ signal }), side.finalResponse({ signal })]);
  assert.equal(one.output_text, two.output_text);
  assert.notEqual(one.id, two.id);
  const changes = order.filter((lane, number) => number > 0 && lane !== order[number - 1]);
  assert.ok(changes.length > 2, `one after the other: ${order}`);
  assert.deepEqual(new Set(order), new Set(["main", "side.1"]));
  const planted = await ask(main, { input: PLANT });
  for (const lane of [side, session.lane(), main]) {
    const asked = await ask(lane, { input: ASK, previous_response_id: planted.id });
    assert.equal(asked.output_text, "The word is marmalade.");
  }
});

test("requests of one lane are answered in their order", async () => {
  const lane = (await connect()).session.lane();
  const texts = ["slowly", "cut", PLANT];
  for (const input of texts) lane.create({ model: "scripted", store: false, input });
  const answers = [];
  for (const _ of texts) answers.push((await lane.finalResponse({ signal })).output_text);
  assert.deepEqual(answers, ["one two three four five six", "Half an", "Noted: marmalade."]);
});

test("a warm-up costs nothing and is continued", async () => {
  const lane = (await connect()).session.lane();
  const warm = await ask(lane, { generate: false, input: [], instructions: "Be brief.", tools: [WEATHER] });
  assert.equal(warm.status, "completed");
  assert.deepEqual(warm.output, []);
  assert.equal(warm.usage.total_tokens, 0);
  const first = await ask(lane, { input: PLANT, previous_response_id: warm.id, instructions: "Be brief." });
  assert.equal(first.output_text, "Noted: marmalade.");
});

test("a stored response is continued here, and read over HTTP", async () => {
  const planted = await client.responses.create({ model: "scripted", input: PLANT });
  const lane = (await connect()).session.lane();
  const asked = await ask(lane, { input: ASK, previous_response_id: planted.id, store: true });
  assert.equal(asked.store, true);
  assert.deepEqual((await client.responses.retrieve(asked.id)).output, asked.output);
});

test("a model server's failure ends one response, not the connection", async () => {
  const lane = (await connect()).session.lane();
  const broken = await ask(lane, { input: "break" });
  assert.equal(broken.status, "failed");
  assert.match(broken.error.message, /Boom/);
  assert.equal((await ask(lane, { input: PLANT })).output_text, "Noted: marmalade.");
  await assertRefused(lane, { input: "x", sotre: 1 }, "unknown_parameter", "sotre");
  await assertRefused(lane, { input: "x", model: "nobody" }, "model_not_found", "model");
  assert.equal((await ask(lane, { input: PLANT })).output_text, "Noted: marmalade.");
});

test("steering is answered, not left hanging", async () => {
  const { socket, session } = await connect();
  const lane = session.lane();
  const planted = await ask(lane, { input: PLANT });
  socket.send({ type: "response.steer", previous_response_id: planted.id, input: [] });
  const event = await lane.receive({ signal });
  assert.equal(event.type, "response.steer.failed");
  assert.equal(event.error.code, "steering_not_supported");
});

test("a client that offers compression is served without", async () => {
  const { session } = await connect({ perMessageDeflate: true });
  assert.equal((await ask(session.lane(), { input: PLANT })).output_text, "Noted: marmalade.");
});

test("a large request and a large answer cross in one message each", async () => {
  const lane = (await connect()).session.lane();
  const word = "w".repeat(1_000_000);
  const asked = await ask(lane, { input: `Remember this word: ${word}.` });
  assert.equal(asked.output_text, `Noted: ${word}.`);
});
