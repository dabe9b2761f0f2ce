// openai-node at a server that does not take its WebSocket: the package is told, and HTTP goes on.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

const { SERVER_URL: baseURL, EXPECTED, RIGHT = "none" } = process.env;

test("the refusal reaches the error event, and the connection ends", async () => {
  const socket = new ResponsesWS(new OpenAI({ baseURL, apiKey: "sk-wrong" }));
  const errors = [];
  socket.on("error", (error) => errors.push(error.message));
  const kinds = [];
  for await (const message of socket.stream()) kinds.push(message.type);
  assert.ok(!kinds.includes("open"));
  assert.match(errors.join("\n"), new RegExp(`Unexpected server response: ${EXPECTED}`));
});

test("a request over HTTP is answered", async () => {
  const client = new OpenAI({ baseURL, apiKey: RIGHT });
  const made = await client.responses.create({ model: "scripted", input: "Remember this word: plum." });
  assert.equal(made.output_text, "Noted: plum.");
});
