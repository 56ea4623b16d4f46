// The openai SDK for node. Runs the case named on the command line; ends with 1 and a trace when it fails.
import assert from "node:assert/strict";
import OpenAI, { APIConnectionTimeoutError, BadRequestError, NotFoundError } from "openai";

const model = "tiny";
const greeting = "Hello, wörld 😀!";
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const said = (content) => [{ role: "user", content }];
const { TICKERTAPE_URL, TICKERTAPE_BUSY_URL, TICKERTAPE_KEY } = process.env;
const connect = (url, options) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: TICKERTAPE_KEY, maxRetries: 0, timeout: 20_000, ...options });

const cases = {
  async whole_and_streamed() {
    const client = connect(TICKERTAPE_URL);
    const whole = await client.chat.completions.create({ model, messages: said("greet") });
    assert.equal(whole.choices[0].message.content, greeting);
    const options = { stream: true, stream_options: { include_usage: true } };
    let text = "", usage = null;
    for await (const chunk of await client.chat.completions.create({ model, messages: said("greet"), ...options })) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, greeting);
    assert.deepEqual(usage, whole.usage);
    const completion = await client.completions.create({ model, prompt: "greet", max_tokens: 50 });
    assert.equal(completion.choices[0].text, greeting);
  },
  async tools() {
    const client = connect(TICKERTAPE_URL);
    const asked = { model, messages: said("weather"), tools: [weather] };
    const whole = await client.chat.completions.create(asked);
    assert.equal(whole.choices[0].finish_reason, "tool_calls");
    assert.deepEqual(JSON.parse(whole.choices[0].message.tool_calls[0].function.arguments), { city: "Paris" });
    const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
    assert.deepEqual(streamed.choices[0].message.tool_calls[0].function, whole.choices[0].message.tool_calls[0].function);
    const called = await client.chat.completions
      .runTools({
        ...asked,
        tools: [{ type: "function", function: { ...weather.function, parse: JSON.parse, function: () => "sunny" } }],
      })
      .finalContent();
    assert.equal(called, "It is sunny in Paris.");
  },
  async structured_output() {
    const schema = {
      type: "object",
      properties: { name: { type: "string" }, age: { type: "integer" } },
      required: ["name", "age"],
      additionalProperties: false,
    };
    const answer = await connect(TICKERTAPE_URL).chat.completions.parse({
      model,
      messages: said("person"),
      response_format: { type: "json_schema", json_schema: { name: "person", schema, strict: true } },
    });
    assert.deepEqual(JSON.parse(answer.choices[0].message.content), { name: "Ada", age: 36 });
  },
  async retries() {
    const client = connect(TICKERTAPE_BUSY_URL, { maxRetries: 5 });
    const answer = await client.chat.completions.create({ model, messages: said("greet") });
    assert.equal(answer.choices[0].message.content, greeting);
  },
  async timeouts() {
    const client = connect(TICKERTAPE_URL, { timeout: 500 });
    await assert.rejects(
      client.chat.completions.create({ model, messages: said("slow") }),
      APIConnectionTimeoutError,
    );
  },
  async leaves_a_stream() {
    const client = connect(TICKERTAPE_URL);
    const stream = await client.chat.completions.create({ model, messages: said("endless"), stream: true });
    let count = 0;
    for await (const _ of stream) if (++count === 5) break;
    assert.equal(count, 5);
  },
  async errors() {
    const client = connect(TICKERTAPE_URL);
    await assert.rejects(client.chat.completions.create({ model: "other", messages: said("greet") }), NotFoundError);
    await assert.rejects(
      client.chat.completions.create({ model, messages: said("greet"), temperature: 9 }),
      (error) => error instanceof BadRequestError && error.param === "temperature",
    );
  },
};

await cases[process.argv[2]]();
