// grpc-js and proto-loader as their makers ship them: `client.mjs CASE ADDRESS KEY PROTO_DIRECTORY`.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const [, , chosen, address, key, protos] = process.argv;
const GREETING = "Hello, wörld 😀!";
const OPTIONS = { keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true };
const SERVICES = [
  "fmaas.GenerationService", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
  "grpc.reflection.v1alpha.ServerReflection", "inference.GRPCInferenceService", "tickertape.v1.TokenStream",
];
const require = createRequire(import.meta.url);
const packaged = (name, file) => path.join(path.dirname(require.resolve(`${name}/package.json`)), file);
const plain = grpc.credentials.createInsecure();
const clients = [];

function client(Service) {
  clients.push(new Service(address, plain));
  return clients.at(-1);
}

async function loaded(file, include) {
  return grpc.loadPackageDefinition(await loader.load(file, { ...OPTIONS, includeDirs: [include] }));
}

async function tokenStream() {
  return client((await loaded("tickertape/v1/token_stream.proto", protos)).tickertape.v1.TokenStream);
}

function metadata(more = {}) {
  const found = new grpc.Metadata();
  for (const [name, value] of Object.entries({ authorization: `Bearer ${key}`, ...more })) found.set(name, value);
  return found;
}

const unary = (stub, method, request, options = {}, meta = metadata()) =>
  new Promise((resolve, reject) =>
    stub[method](request, meta, options, (error, answer) => (error ? reject(error) : resolve(answer))),
  );

async function all(stream) {
  const found = [];
  for await (const message of stream) found.push(message);
  return found;
}

/** The first `count` messages; the stream stays open. */
async function some(stream, count) {
  const found = [];
  for await (const message of stream.iterator({ destroyOnReturn: false })) {
    if (found.push(message) === count) break;
  }
  return found;
}

/** Cancels a stream, and swallows what it says of that. */
function cancel(stream) {
  stream.on("error", () => {});
  stream.cancel();
}

async function fails(work, code) {
  await assert.rejects(work, (error) => {
    assert.equal(error.code, code, error.message);
    return true;
  });
}

async function untilIdle(stub) {
  for (const end = Date.now() + 10_000; (await unary(stub, "GetLoad", {})).models[0].running; ) {
    assert(Date.now() < end, "something goes on");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const said = (text, more = {}) => ({ model: "tiny", messages: [{ role: "user", content: text }], ...more });
const asked = (text, max_tokens, more = {}) => ({ model: "tiny", prompts: [{ text }], sampling: { max_tokens }, ...more });
const texts = (messages) => messages.flatMap((message) => message.choices.map((choice) => choice.text)).join("");

const cases = {
  async whole_and_streamed() {
    const stub = await tokenStream();
    assert.deepEqual((await unary(stub, "ListModels", {})).models.map((model) => model.name), ["tiny"]);
    const whole = await unary(stub, "Chat", said("greet"));
    assert.equal(whole.choices[0].content, GREETING);
    const parts = await all(stub.ChatStream(said("greet"), metadata()));
    assert.equal(parts.flatMap((part) => part.choices.map((choice) => choice.content)).join(""), GREETING);
    assert.equal(parts.at(-1).choices[0].finish.reason, "FINISH_REASON_STOP");
    assert.deepEqual(parts.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
    assert.equal(texts(await all(stub.GenerateStream(asked("greet", 60), metadata()))), GREETING);
  },

  async tools() {
    const stub = await tokenStream();
    const tools = [{ name: "get_weather", parameters_json: '{"type":"object"}' }];
    const parts = await all(stub.ChatStream(said("weather?", { tools }), metadata()));
    const calls = parts.flatMap((part) => part.choices.flatMap((choice) => choice.tool_calls));
    assert.deepEqual(calls.map((call) => call.name).filter(Boolean), ["get_weather"]);
    assert.deepEqual(JSON.parse(calls.map((call) => call.arguments).join("")), { city: "Paris" });
  },

  async cancel() {
    const stub = await tokenStream();
    const stream = stub.GenerateStream(asked("endless", 10_000), metadata());
    await some(stream, 1);
    cancel(stream);
    await untilIdle(stub);
  },

  async deadline() {
    const stub = await tokenStream();
    const begun = Date.now();
    const deadline = begun + 300;
    await fails(all(stub.GenerateStream(asked("endless", 10_000), metadata(), { deadline })), grpc.status.DEADLINE_EXCEEDED);
    assert(Date.now() - begun < 5000);
    await untilIdle(stub);
  },

  async resume() {
    const stub = await tokenStream();
    const stream = stub.GenerateStream(asked("slow", 100, { resumable: true }), metadata());
    const got = await some(stream, 10);
    cancel(stream);
    const rest = { resume_token: got[0].resume_token, received: got.at(-1).sequence };
    got.push(...(await all(stub.GenerateStream(rest, metadata()))));
    assert.equal(texts(got), "0123456789".repeat(10));
    assert.deepEqual(got.map((message) => message.sequence), got.map((_, n) => n + 1));
    await fails(all(stub.GenerateStream({ resume_token: "0".repeat(32) }, metadata())), grpc.status.NOT_FOUND);
  },

  async abort() {
    const stub = await tokenStream();
    const stream = stub.GenerateStream(asked("endless", 10_000), metadata({ "x-request-id": "of-node" }));
    await some(stream, 1);
    assert((await unary(stub, "Abort", { request_id: "of-node" })).found);
    await fails(all(stream), grpc.status.ABORTED);
  },

  async errors() {
    const stub = await tokenStream();
    await fails(unary(stub, "Chat", { ...said("x"), model: "nope" }), grpc.status.NOT_FOUND);
    await fails(unary(stub, "Generate", { ...asked("x", 3), sampling: { temperature: 9 } }), grpc.status.INVALID_ARGUMENT);
    await fails(unary(stub, "Generate", asked("x", 3), {}, new grpc.Metadata()), grpc.status.UNAUTHENTICATED);
    await fails(unary(stub, "Embed", { model: "tiny" }), grpc.status.UNIMPLEMENTED);
  },

  async health() {
    const { grpc: found } = await loaded("health/v1/health.proto", packaged("grpc-health-check", "proto"));
    const stub = client(found.health.v1.Health);
    for (const service of ["", "tiny", "tickertape.v1.TokenStream"]) {
      const answer = await unary(stub, "Check", { service }, {}, new grpc.Metadata());
      assert.equal(answer.status, "SERVING");
      const watch = stub.Watch({ service });
      assert.equal((await some(watch, 1))[0].status, "SERVING");
      cancel(watch);
    }
    await fails(unary(stub, "Check", { service: "nope" }), grpc.status.NOT_FOUND);
  },

  reflection_v1: () => walk("v1"),
  reflection_v1alpha: () => walk("v1alpha"),
};

/** As grpcurl does it: lists the services, asks for the files of each, and calls one that it knows from these alone. */
async function walk(version) {
  const file = `grpc/reflection/${version}/reflection.proto`;
  const { grpc: found } = await loaded(file, packaged("@grpc/reflection", "build/proto"));
  const call = client(found.reflection[version].ServerReflection).ServerReflectionInfo(metadata());
  const answers = call[Symbol.asyncIterator]();
  const ask = async (request) => {
    call.write(request);
    return (await answers.next()).value;
  };
  const listed = (await ask({ list_services: "" })).list_services_response.service.map((service) => service.name);
  assert.deepEqual(listed.toSorted(), SERVICES);
  const files = new Map();
  for (const name of listed) {
    const answer = await ask({ file_containing_symbol: name });
    files.set(name, answer.file_descriptor_response.file_descriptor_proto);
    assert(files.get(name).length > 0);
  }
  call.end();
  assert((await answers.next()).done);
  // A FileDescriptorSet is its files, each as field 1.
  const set = Buffer.concat(files.get("tickertape.v1.TokenStream").map((each) => Buffer.concat([head(each.length), each])));
  const described = grpc.loadPackageDefinition(loader.loadFileDescriptorSetFromBuffer(set, OPTIONS));
  const stub = client(described.tickertape.v1.TokenStream);
  assert.equal(texts(await all(stub.GenerateStream(asked("greet", 60), metadata()))), GREETING);
}

/** The tag of field 1, and a length. */
function head(length) {
  const bytes = [10];
  for (; length > 127; length >>>= 7) bytes.push((length & 127) | 128);
  return Buffer.from([...bytes, length]);
}

await cases[chosen]();
for (const each of clients) each.close();
