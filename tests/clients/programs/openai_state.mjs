// openai-node: what is stored and how it is read, paged, counted, cancelled and deleted; and its errors.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.SERVER_URL, apiKey: "none", maxRetries: 0, timeout: 30_000 });
const PLANT = "Remember this word: marmalade.";
const ASK = "What was the word?";

async function all(pages) {
  const found = [];
  for await (const each of await pages) found.push(each);
  return found;
}

test("a word is planted and found by id", async () => {
  const planted = await client.responses.create({ model: "scripted", input: PLANT, metadata: { a: "b" } });
  const asked = await client.responses.create({
    model: "scripted",
    input: ASK,
    previous_response_id: planted.id,
  });
  assert.match(asked.output_text, /marmalade/);
  const full = await client.responses.create({
    model: "scripted",
    input: [{ role: "user", content: PLANT }, ...planted.output, { role: "user", content: ASK }],
  });
  assert.equal(full.usage.input_tokens, asked.usage.input_tokens);
  const read = await client.responses.retrieve(planted.id);
  assert.deepEqual(read.output, planted.output);
  assert.deepEqual(read.metadata, { a: "b" });
  assert.ok(planted._request_id.startsWith("req_"));
});

test("a deleted response is gone", async () => {
  const made = await client.responses.create({ model: "scripted", input: PLANT });
  await client.responses.delete(made.id);
  await assert.rejects(client.responses.retrieve(made.id), OpenAI.NotFoundError);
  await assert.rejects(
    client.responses.create({ model: "scripted", input: ASK, previous_response_id: made.id }),
    (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.code, "previous_response_not_found");
      assert.equal(error.param, "previous_response_id");
      return true;
    },
  );
});

test("input items are paged by the package", async () => {
  let tip;
  for (const number of [0, 1, 2, 3]) {
    const input = `number ${number}`;
    tip = (await client.responses.create({ model: "scripted", input, previous_response_id: tip })).id;
  }
  for (const order of ["asc", "desc"]) {
    const items = await all(client.responses.inputItems.list(tip, { limit: 2, order }));
    assert.equal(new Set(items.map((item) => item.id)).size, 7);
    const told = items.filter((item) => item.role === "user").map((item) => item.content[0].text);
    const wanted = [0, 1, 2, 3].map((number) => `number ${number}`);
    assert.deepEqual(told, order === "asc" ? wanted : wanted.reverse());
  }
});

test("a prompt is counted before it is sent", async () => {
  const planted = await client.responses.create({ model: "scripted", input: PLANT });
  const prompt = { model: "scripted", input: ASK, previous_response_id: planted.id };
  const counted = await client.responses.inputTokens.count(prompt);
  const made = await client.responses.create(prompt);
  assert.equal(counted.object, "response.input_tokens");
  assert.equal(counted.input_tokens, made.usage.input_tokens);
});

test("a conversation from its creation to its deletion", async () => {
  const { conversations } = client;
  const conversation = await conversations.create({
    metadata: { topic: "fruit" },
    items: [{ type: "message", role: "user", content: "My name is Ada." }],
  });
  const made = await client.responses.create({
    model: "scripted",
    input: PLANT,
    conversation: conversation.id,
  });
  assert.equal(made.conversation.id, conversation.id);
  const asked = await client.responses.create({
    model: "scripted",
    input: ASK,
    conversation: { id: conversation.id },
  });
  assert.match(asked.output_text, /marmalade/);
  const added = await conversations.items.create(conversation.id, {
    items: [...Array(20).keys()].map((number) => ({
      type: "message",
      role: "user",
      content: `number ${number}`,
    })),
  });
  assert.equal(added.data.length, 20);
  for (const order of ["asc", "desc"]) {
    const items = await all(conversations.items.list(conversation.id, { limit: 7, order }));
    assert.equal(items.length, 25);
    assert.equal(new Set(items.map((item) => item.id)).size, 25);
    assert.equal(items.at(order === "asc" ? -1 : 0).id, added.last_id);
  }
  const one = await conversations.items.retrieve(added.last_id, { conversation_id: conversation.id });
  assert.equal(one.content[0].text, "number 19");
  const shorter = await conversations.items.delete(added.last_id, { conversation_id: conversation.id });
  assert.equal(shorter.id, conversation.id);
  assert.equal((await all(conversations.items.list(conversation.id))).length, 24);
  const updated = await conversations.update(conversation.id, { metadata: { a: "b" } });
  assert.deepEqual(updated.metadata, { a: "b" });
  assert.deepEqual((await conversations.retrieve(conversation.id)).metadata, { a: "b" });
  assert.equal((await conversations.delete(conversation.id)).deleted, true);
  await assert.rejects(conversations.retrieve(conversation.id), OpenAI.NotFoundError);
});

test("a background response is polled and cancelled", async () => {
  let response = await client.responses.create({ model: "scripted", input: PLANT, background: true });
  assert.equal(response.status, "queued");
  // The test's own limit bounds it.
  while (["queued", "in_progress"].includes(response.status)) {
    response = await client.responses.retrieve(response.id);
  }
  assert.equal(response.output_text, "Noted: marmalade.");
  await assert.rejects(client.responses.cancel(response.id), /Cannot cancel a completed response/);
  const hanging = await client.responses.create({ model: "scripted", input: "hang", background: true });
  assert.equal((await client.responses.cancel(hanging.id)).status, "cancelled");
  assert.equal((await client.responses.cancel(hanging.id)).status, "cancelled");
});

test("models are listed and read", async () => {
  assert.deepEqual((await all(client.models.list())).map((model) => model.id), ["scripted"]);
  assert.equal((await client.models.retrieve("scripted")).owned_by, "antiphon");
  await assert.rejects(client.models.retrieve("nobody"), { status: 404, code: "model_not_found" });
});

for (const stream of [false, true]) {
  test(`errors are the package's classes, stream: ${stream}`, async () => {
    const cases = [
      [{ input: "refuse 400" }, OpenAI.BadRequestError, {}],
      [{ input: "refuse 429" }, OpenAI.RateLimitError, { code: "rate_limit_exceeded" }],
      [{ input: "refuse 500" }, OpenAI.InternalServerError, {}],
      [{ input: "x", model: "nobody" }, OpenAI.BadRequestError, { code: "model_not_found", param: "model" }],
      [{ input: "x", temperature: 9 }, OpenAI.BadRequestError, { param: "temperature" }],
      [{ input: "x", sotre: 1 }, OpenAI.BadRequestError, { code: "unknown_parameter", param: "sotre" }],
    ];
    for (const [body, kind, members] of cases) {
      await assert.rejects(client.responses.create({ model: "scripted", stream, ...body }), (error) => {
        assert.equal(error.constructor, kind);
        for (const [name, value] of Object.entries(members)) assert.equal(error[name], value);
        assert.ok(error.requestID.startsWith("req_"));
        return true;
      });
    }
  });
}

test("the raw answer can be read", async () => {
  const { data, response } = await client.responses
    .create({ model: "scripted", input: PLANT })
    .withResponse();
  assert.equal(data.status, "completed");
  assert.ok(response.headers.get("antiphon-version"));
});

test("items that were kept under seal are sent back", async () => {
  const made = await client.responses.create({
    model: "scripted",
    input: "think",
    store: false,
    include: ["reasoning.encrypted_content"],
  });
  assert.ok(made.output[0].encrypted_content);
  const again = await client.responses.create({
    model: "scripted",
    store: false,
    input: [{ role: "user", content: PLANT }, ...made.output, { role: "user", content: ASK }],
  });
  assert.match(again.output_text, /marmalade/);
});
