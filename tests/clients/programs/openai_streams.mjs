// Streams of every kind of item through openai-node's `responses.stream()`, whose accumulator refuses events
// that do not fit one another.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.SERVER_URL, apiKey: "none", maxRetries: 0, timeout: 30_000 });
const WEATHER = {
  type: "function",
  name: "get_weather",
  parameters: {
    type: "object",
    properties: { city: { type: "string" } },
    required: ["city"],
    additionalProperties: false,
  },
  strict: true,
};
const PATCH = { type: "custom", name: "apply_patch", description: "Edits files." };
const MCP = {
  type: "mcp",
  server_label: "home",
  server_url: process.env.MCP_URL,
  authorization: process.env.MCP_TOKEN,
  require_approval: { never: { tool_names: ["weather"] } },
};

/** Stream to the end: all events, what the accumulator made of them, and that the server stored the same. */
async function collect(params) {
  const stream = client.responses.stream({ model: "scripted", ...params });
  const events = [];
  for await (const event of stream) events.push(event);
  const final = await stream.finalResponse();
  assert.deepEqual(events.map((event) => event.sequence_number), [...events.keys()]);
  const read = await client.responses.retrieve(final.id, { include: params.include });
  assert.equal(read.output_text, final.output_text);
  assert.deepEqual(read.output, JSON.parse(JSON.stringify(final.output.map(withoutParsed))));
  assert.deepEqual(read.usage, final.usage);
  return { kinds: new Set(events.map((event) => event.type)), events, final };
}

/** What the package adds to items while it parses is not of the wire. */
function withoutParsed(item) {
  const { parsed_arguments, ...plain } = item;
  if (plain.type !== "message") return plain;
  return { ...plain, content: plain.content.map(({ parsed, ...part }) => part) };
}

function join(events, kind) {
  return events.filter((event) => event.type === kind).map((event) => event.delta).join("");
}

function assertKinds(kinds, ...wanted) {
  for (const kind of wanted) assert.ok(kinds.has(kind), `no ${kind} among ${[...kinds].join(", ")}`);
}

test("text comes in deltas that add up to the final text", async () => {
  const snapshots = [];
  const stream = client.responses
    .stream({ model: "scripted", input: "long" })
    .on("response.output_text.delta", (event) => snapshots.push(event.snapshot));
  const final = await stream.finalResponse();
  assert.equal(final.status, "completed");
  assert.equal(snapshots.at(-1), final.output_text);
  assert.ok(snapshots.length > 100);
  const { kinds, events } = await collect({ input: "long" });
  assert.equal(join(events, "response.output_text.delta"), final.output_text);
  assertKinds(kinds, "response.created", "response.in_progress", "response.output_item.added");
  assertKinds(kinds, "response.content_part.added", "response.output_text.done", "response.content_part.done");
  assertKinds(kinds, "response.output_item.done", "response.completed");
});

test("a refusal is accumulated as a refusal", async () => {
  const { kinds, events, final } = await collect({ input: "decline" });
  assertKinds(kinds, "response.refusal.delta", "response.refusal.done");
  assert.equal(final.output[0].content[0].refusal, "I will not.");
  assert.equal(join(events, "response.refusal.delta"), "I will not.");
});

test("reasoning, then text, in items of their own", async () => {
  const { events, final } = await collect({ input: "think", reasoning: { summary: "auto" } });
  assert.deepEqual(final.output.map((item) => item.type), ["reasoning", "message"]);
  const told = [...final.output[0].summary, ...(final.output[0].content ?? [])].map((part) => part.text);
  assert.deepEqual(told, ["Let me see."]);
  const streamed =
    join(events, "response.reasoning_summary_text.delta") + join(events, "response.reasoning_text.delta");
  assert.equal(streamed, "Let me see.");
});

test("parallel function calls after text and reasoning", async () => {
  const { kinds, events, final } = await collect({ input: "both", tools: [WEATHER] });
  assertKinds(kinds, "response.function_call_arguments.delta", "response.function_call_arguments.done");
  const calls = final.output.filter((item) => item.type === "function_call");
  assert.deepEqual(calls.map((call) => JSON.parse(call.arguments).city), ["Oslo", "Bergen"]);
  assert.equal(new Set(calls.map((call) => call.call_id)).size, 2);
  assert.equal(
    join(events, "response.function_call_arguments.delta"),
    calls.map((call) => call.arguments).join(""),
  );
  assert.deepEqual(final.output.map((item) => item.type), [
    "reasoning",
    "message",
    "function_call",
    "function_call",
  ]);
  const outputs = calls.map((call, number) => ({
    type: "function_call_output",
    call_id: call.call_id,
    output: `${number} degrees`,
  }));
  const second = await collect({ input: outputs, previous_response_id: final.id, tools: [WEATHER] });
  assert.match(second.final.output_text, /0 degrees[^]*1 degrees/);
});

test("a custom tool's input comes in deltas", async () => {
  const { kinds, events, final } = await collect({ input: "patch", tools: [PATCH] });
  assertKinds(kinds, "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done");
  assert.equal(final.output[0].type, "custom_tool_call");
  assert.equal(final.output[0].input, "*** Begin Patch");
  assert.equal(join(events, "response.custom_tool_call_input.delta"), "*** Begin Patch");
});

const CLIENT_RUN = {
  shell: [{ type: "shell", environment: { type: "local" } }, "shell_call"],
  local: [{ type: "local_shell" }, "local_shell_call"],
  edit: [{ type: "apply_patch" }, "apply_patch_call"],
};
for (const [input, [tool, type]] of Object.entries(CLIENT_RUN)) {
  test(`a call of ${tool.type} is an item of its own kind`, async () => {
    const { final } = await collect({ input, tools: [tool] });
    assert.deepEqual(final.output.map((item) => item.type), [type]);
  });
}

test("a web search is seen and cited", async () => {
  const { kinds, final } = await collect({
    input: "search",
    tools: [{ type: "web_search" }],
    include: ["web_search_call.results", "web_search_call.action.sources"],
  });
  assertKinds(kinds, "response.web_search_call.in_progress", "response.web_search_call.searching");
  assertKinds(kinds, "response.web_search_call.completed", "response.output_text.annotation.added");
  assert.deepEqual(final.output.map((item) => item.type), ["web_search_call", "message"]);
  assert.equal(final.output[1].content[0].annotations[0].url, "https://fjords.example/deep");
});

test("tools of an MCP server are listed, called and approved", async () => {
  const first = await collect({ input: "weather", tools: [MCP] });
  assertKinds(first.kinds, "response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed");
  assertKinds(first.kinds, "response.mcp_call.in_progress", "response.mcp_call_arguments.delta");
  assertKinds(first.kinds, "response.mcp_call_arguments.done", "response.mcp_call.completed");
  assert.deepEqual(first.final.output.map((item) => item.type), ["mcp_list_tools", "mcp_call", "message"]);
  const asked = await collect({ input: "send", tools: [MCP], previous_response_id: first.final.id });
  const request = asked.final.output.at(-1);
  assert.equal(request.type, "mcp_approval_request");
  const answer = { type: "mcp_approval_response", approval_request_id: request.id, approve: true };
  const sent = await collect({ input: [answer], tools: [MCP], previous_response_id: asked.final.id });
  assert.equal(sent.final.output[0].output, "Sent.");
});

test("a response that was cut is incomplete and keeps its text", async () => {
  const { kinds, final } = await collect({ input: "cut" });
  assertKinds(kinds, "response.incomplete");
  assert.equal(final.incomplete_details.reason, "max_output_tokens");
  assert.equal(final.output_text, "Half an");
});

test("a stream that breaks raises the server's error", async () => {
  const stream = client.responses.stream({ model: "scripted", input: "break" });
  await assert.rejects(stream.finalResponse(), (error) => {
    assert.ok(error instanceof OpenAI.APIError);
    assert.match(error.message, /Boom/);
    return true;
  });
});

test("a background response is followed from its first event, or from the middle", async () => {
  const { kinds, events, final } = await collect({ input: "slowly", background: true });
  assertKinds(kinds, "response.queued");
  const replay = client.responses.stream({ response_id: final.id, starting_after: 4 });
  const later = [];
  for await (const event of replay) later.push(event);
  assert.deepEqual(later, events.slice(5));
  assert.equal((await replay.finalResponse()).output_text, "one two three four five six");
});

test("a broken connection is taken up where it was", async () => {
  const seen = [];
  const stream = await client.responses.create({
    model: "scripted",
    input: "slowly",
    background: true,
    stream: true,
  });
  for await (const event of stream) {
    seen.push(event);
    if (event.type === "response.output_text.delta") break;
  }
  const id = seen[0].response.id;
  const after = seen.at(-1).sequence_number;
  for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: after })) {
    seen.push(event);
  }
  assert.deepEqual(seen.map((event) => event.sequence_number), [...seen.keys()]);
  assert.equal(join(seen, "response.output_text.delta"), "one two three four five six");
});

test("a stream that is left early ends at the server", async () => {
  const stream = client.responses.stream({ model: "scripted", input: "hang" });
  let id;
  for await (const event of stream) {
    id = event.response.id;
    if (event.type === "response.in_progress") break;
  }
  await assert.rejects(stream.finalResponse(), OpenAI.APIUserAbortError);
  // It cannot be read before it has ended; the whole program's limit bounds the loop.
  let read;
  while (read === undefined) {
    read = await client.responses.retrieve(id).catch((error) => assert.equal(error.status, 404));
  }
  assert.equal(read.status, "cancelled");
});
