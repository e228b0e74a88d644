// Two tools in a loop of the AI SDK: `node of_ai_sdk.mjs URL` prints one JSON object for each way to run it.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url] = process.argv.slice(2);
const prompt = "What will the weather be where Ada Lovelace was born?";
const called = [];

const tools = {
  find_city: tool({
    description: "Find the city in which a person was born.",
    inputSchema: z.object({ person: z.string() }),
    execute: async (input) => {
      called.push(["find_city", input]);
      return "London";
    },
  }),
  forecast: tool({
    description: "Forecast the weather of a city.",
    inputSchema: z.object({ city: z.string(), days: z.number().int() }),
    execute: async (input) => {
      called.push(["forecast", input]);
      return `Rain in ${input.city} for ${input.days} days`;
    },
  }),
};

const settings = { baseURL: `${url}/v1`, apiKey: "none" };
const models = {
  "chat completions": createOpenAICompatible({ name: "worker", ...settings })("m"),
  Responses: createOpenAI(settings).responses("m"),
  Messages: createAnthropic(settings)("m"),
};

async function answered(model, isStreamed) {
  const asked = { model, tools, prompt, stopWhen: stepCountIs(5), maxRetries: 0, maxOutputTokens: 256 };
  if (!isStreamed) return (await generateText(asked)).text;
  const running = streamText({ ...asked, onError: ({ error }) => { throw error; } });
  await running.consumeStream();
  return await running.text;
}

for (const [name, model] of Object.entries(models)) {
  for (const isStreamed of [false, true]) {
    called.length = 0;
    const text = await answered(model, isStreamed);
    console.log(JSON.stringify({ way: `${name}, ${isStreamed ? "streamed" : "whole"}`, called, text }));
  }
}
