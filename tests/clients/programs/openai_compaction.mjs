// openai-node and compaction: its method, the trigger and `context_management`, through its accumulator.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.SERVER_URL, apiKey: "none", maxRetries: 0, timeout: 30_000 });
const ASK = { role: "user", content: "What was the word?" };
const KNOWN = "The word is marmalade.";
const TRIGGER = { type: "compaction_trigger" };
const MANAGED = [{ type: "compaction", compact_threshold: 1000 }];

function makeHistory() {
  const items = [
    { role: "user", content: "Remember this word: marmalade." },
    { role: "assistant", content: "Noted." },
  ];
  for (let number = 0; number < 6; number += 1) {
    const rows = Array.from({ length: 40 }, (_, row) => `Shelf ${number}${row} holds nothing of interest.`);
    const call_id = `call_${number}`;
    items.push({ type: "function_call", call_id, name: "look", arguments: "{}" });
    items.push({ type: "function_call_output", call_id, output: rows.join("\n") });
  }
  return [...items, { role: "assistant", content: "All is looked at." }];
}

const listTypes = (items) => items.map((item) => item.type);
const ask = (input, fields = {}) => client.responses.create({ model: "scripted", input, ...fields });

test("a window is compacted and gone on with", async () => {
  const compacted = await client.responses.compact({ model: "scripted", input: makeHistory() });
  assert.equal(compacted.object, "response.compaction");
  assert.deepEqual(listTypes(compacted.output), ["message", "compaction"]);
  assert.equal((await ask([...compacted.output, ASK])).output_text, KNOWN);
});

test("a stored response is compacted by its id", async () => {
  const planted = await ask("Remember this word: marmalade.");
  const compacted = await client.responses.compact({ model: "scripted", previous_response_id: planted.id });
  assert.equal((await ask([...compacted.output, ASK])).output_text, KNOWN);
});

test("a trigger brings one item that works alone", async () => {
  const stream = client.responses.stream({
    model: "scripted",
    input: [...makeHistory(), TRIGGER],
    store: false,
  });
  const kinds = [];
  for await (const event of stream) kinds.push(event.type);
  const final = await stream.finalResponse();
  assert.deepEqual(listTypes(final.output), ["compaction"]);
  assert.equal(kinds.filter((kind) => kind === "response.output_item.done").length, 1);
  assert.equal(kinds.at(-1), "response.completed");
  assert.equal((await ask([...final.output, ASK], { store: false })).output_text, KNOWN);
});

test("a response that compacts by itself is accumulated", async () => {
  const stream = client.responses.stream({
    model: "scripted",
    input: [...makeHistory(), ASK],
    context_management: MANAGED,
  });
  const final = await stream.finalResponse();
  assert.deepEqual(listTypes(final.output), ["compaction", "message"]);
  assert.equal(final.output_text, KNOWN);
  const again = await ask([ASK], { previous_response_id: final.id });
  assert.equal(again.output_text, KNOWN);
});

test("a broken seal is refused", async () => {
  const broken = { type: "compaction", id: "cmp_1", encrypted_content: "garbage" };
  await assert.rejects(ask([broken, ASK]), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.code, "invalid_encrypted_content");
    return true;
  });
});
