// The npm package `openai` against the local platform: list, plain chat, streamed chat. One line each.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: process.env.API_KEY, maxRetries: 0 });
const messages = [{ role: "user", content: "the capital of France?" }];

const ids = [];
for await (const model of client.models.list()) ids.push(model.id);
console.log("models", ids.join(","));

const chat = await client.chat.completions.create({ model: ids[0], messages });
console.log("plain", chat.choices[0].message.content);

let text = "";
for await (const chunk of await client.chat.completions.create({ model: ids[0], messages, stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
console.log("streamed", text);
