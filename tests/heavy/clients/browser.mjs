// A page as a chat interface in a browser has it: plain fetch to another origin, the stream read as it comes. Prints
// what the page saw as JSON.
import { createServer } from "node:http";
import { chromium } from "playwright-core";

const { TICKERTAPE_URL: url, TICKERTAPE_BUSY_URL, TICKERTAPE_KEY: key, CHROMIUM } = process.env;

// Everything in here runs in the page.
async function visit({ url, key }) {
  const headers = { "content-type": "application/json", authorization: `Bearer ${key}` };
  const ask = (body, options = {}) =>
    fetch(`${url}/v1/chat/completions`, {
      method: "POST",
      headers: { ...headers, ...options.headers },
      signal: options.signal,
      body: JSON.stringify({ model: "tiny", ...body, messages: [{ role: "user", content: body.messages }] }),
    });

  async function* events(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
    }
  }

  const seen = {};
  const models = await fetch(`${url}/v1/models`, { headers });
  seen.models = (await models.json()).data.map((model) => model.id);
  seen.request_id = models.headers.get("x-request-id");

  seen.whole = (await (await ask({ messages: "greet" })).json()).choices[0].message.content;

  const streamed = await ask({ messages: "slow", max_tokens: 60, stream: true });
  seen.type = streamed.headers.get("content-type");
  seen.arrivals = 0;
  seen.text = "";
  const before = performance.now();
  let first = null;
  for await (const data of events(streamed)) {
    seen.last = data;
    if (data === "[DONE]") continue;
    const text = JSON.parse(data).choices[0]?.delta.content ?? "";
    if (text && first === null) first = performance.now() - before;
    seen.arrivals += 1;
    seen.text += text;
  }
  seen.first_share = first / (performance.now() - before);

  seen.greeting = "";
  for await (const data of events(await ask({ messages: "greet", stream: true })))
    if (data !== "[DONE]") seen.greeting += JSON.parse(data).choices[0]?.delta.content ?? "";

  const stopping = new AbortController();
  const endless = await ask({ messages: "endless", stream: true }, { signal: stopping.signal });
  try {
    for await (const _ of events(endless)) stopping.abort();
  } catch (error) {
    seen.aborted = error.name;
  }

  try {
    await (await ask({ messages: "slow" }, { signal: AbortSignal.timeout(500) })).json();
  } catch (error) {
    seen.timeout = error.name;
  }

  const refused = await ask({ messages: "greet" }, { headers: { authorization: "Bearer wrong" } });
  seen.refused = [refused.status, (await refused.json()).error.code];
  return seen;
}

// One that tries again, when told and no sooner, and reads the headers that tell it.
async function insist({ url, key }) {
  for (let tries = 1; tries <= 8; tries++) {
    const answer = await fetch(`${url}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${key}` },
      body: JSON.stringify({ model: "tiny", messages: [{ role: "user", content: "greet" }] }),
    });
    if (answer.status === 200) return { tries, text: (await answer.json()).choices[0].message.content };
    const after_ms = Number(answer.headers.get("retry-after-ms"));
    if (answer.status !== 429 || !after_ms) return { tries, status: answer.status, after_ms };
    await new Promise((resolve) => setTimeout(resolve, after_ms));
  }
}

const page_server = createServer((_, response) => response.setHeader("content-type", "text/html").end("<p>chat</p>"));
await new Promise((resolve) => page_server.listen(0, "127.0.0.1", resolve));
const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
try {
  const page = await browser.newPage();
  await page.goto(`http://127.0.0.1:${page_server.address().port}/`);
  const arguments_ = { url: process.argv[2] === "retries" ? TICKERTAPE_BUSY_URL : url, key };
  console.log(JSON.stringify(await page.evaluate(process.argv[2] === "retries" ? insist : visit, arguments_)));
} finally {
  await browser.close();
  page_server.close();
}
