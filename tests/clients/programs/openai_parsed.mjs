// openai-node with zod: texts and arguments are parsed by the package, and its tool runner drives whole loops.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { ResponsesToolRunner, runnerFunction } from "openai/helpers/responses-tool-runner";
import { zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: process.env.SERVER_URL, apiKey: "none", maxRetries: 0, timeout: 30_000 });
const Place = z.object({ city: z.string(), country: z.string().nullable(), streets: z.array(z.string()) });
const format = zodTextFormat(Place, "place");

test("a zod object is asked for and parsed", async () => {
  const response = await client.responses.parse({
    model: "scripted",
    input: "json place",
    text: { format },
  });
  assert.deepEqual(response.output_parsed, { city: "Oslo", country: null, streets: ["Karl Johan"] });
  assert.equal(response.text.format.name, "place");
  assert.equal(response.text.format.strict, true);
});

test("a stream is parsed at its end", async () => {
  const stream = client.responses.stream({ model: "scripted", input: "json place", text: { format } });
  assert.equal((await stream.finalResponse()).output_parsed.city, "Oslo");
});

test("arguments of functions are parsed", async () => {
  const tool = zodResponsesFunction({ name: "get_weather", parameters: z.object({ city: z.string() }) });
  const made = await client.responses.parse({ model: "scripted", input: "both", tools: [tool] });
  const calls = made.output.filter((item) => item.type === "function_call");
  assert.deepEqual(calls.map((call) => call.parsed_arguments.city), ["Oslo", "Bergen"]);
  const stream = client.responses.stream({ model: "scripted", input: "both", tools: [tool] });
  assert.deepEqual((await stream.finalResponse()).output.at(-1).parsed_arguments, { city: "Bergen" });
});

test("text that does not fit is the package's error", async () => {
  await assert.rejects(
    client.responses.parse({ model: "scripted", input: "json wrong", text: { format } }),
    z.ZodError,
  );
});

test("the package's tool runner sends calls and results back in full, and reaches an answer", async () => {
  const asked = [];
  const runner = () =>
    new ResponsesToolRunner({
      functions: [
        runnerFunction(
          zodResponsesFunction({
            name: "get_weather",
            parameters: z.object({ city: z.string() }),
            function: ({ city }) => {
              asked.push(city);
              return `4 degrees in ${city}`;
            },
          }),
        ),
      ],
    });
  for (const stream of [false, true]) {
    const final = await runner().run(client, { model: "scripted", input: "both", store: false }, { stream });
    assert.match(final.output_text, /4 degrees in Oslo[^]*4 degrees in Bergen/);
  }
  assert.deepEqual(asked, ["Oslo", "Bergen", "Oslo", "Bergen"]);
});
