// node-redlock behind a line protocol: a command on each line of standard input, an answer of one
// word, or an error, on each line of standard output. Arguments: the folder with node_modules, the
// name of the package there, and the URLs of the masters.
import { closeSync, openSync, unlinkSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";

const RETRY_DELAY_MS = 20;
const RETRY_JITTER_MS = 10;
// For processes that share a lock which is held for a millisecond; the defaults are 10, 200 and 100.
const SHARE = { retryCount: 10, retryDelay: 4, retryJitter: 2 };
const HOLD_MS = 1;

const [folder, name, ...urls] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const Redis = require("ioredis");
const module = require(name);
// 5.x has a default export, and 4.x is the class itself.
const Redlock = module.default ?? module;
const Refusal = module.ExecutionError ?? Redlock.LockError;

const clients = urls.map((url) => new Redis(url));
// Errors of single masters are the library's business; without a listener they end the process.
for (const client of clients) client.on("error", () => {});

const once = new Redlock(clients, { retryCount: 0 });
let held;

async function acquire(redlock, key, ttl) {
  try {
    // Several resources have commas between them.
    held = await redlock.acquire(key.split(","), ttl);
    return "granted";
  } catch (error) {
    if (error instanceof Refusal) return "refused";
    throw error;
  }
}

async function waiting(key, ttl, wait) {
  const retryCount = Math.ceil(wait / RETRY_DELAY_MS);
  const settings = { retryCount, retryDelay: RETRY_DELAY_MS, retryJitter: RETRY_JITTER_MS };
  return acquire(new Redlock(clients, settings), key, ttl);
}

async function extend(ttl) {
  try {
    held = await held.extend(ttl);
    return "extended";
  } catch (error) {
    if (error instanceof Refusal) return "refused";
    throw error;
  }
}

async function unlock() {
  try {
    await once.release(held);
    return "released";
  } catch (error) {
    if (error instanceof Refusal) return "lost";
    throw error;
  }
}

// Takes the lock again and again. The file stands for its holder: there must never be two.
async function share(key, ttl, run, holder) {
  const redlock = new Redlock(clients, SHARE);
  const until = performance.now() + run;
  let count = 0;
  while (performance.now() < until) {
    if ((await acquire(redlock, key, ttl)) === "refused") continue;
    closeSync(openSync(holder, "wx"));
    await pause(HOLD_MS);
    unlinkSync(holder);
    await unlock();
    count += 1;
  }
  return `held ${count}`;
}

async function answer([command, ...words]) {
  switch (command) {
    case "lock":
      return acquire(once, words[0], Number(words[1]));
    case "wait":
      return waiting(words[0], Number(words[1]), Number(words[2]));
    case "extend":
      return extend(Number(words[0]));
    case "share":
      return share(words[0], Number(words[1]), Number(words[2]), words[3]);
    case "unlock":
      return unlock();
    default:
      throw new Error(`unknown command ${command}`);
  }
}

await Promise.all(clients.map((client) => client.ping()));
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  if (line === "quit") break;
  try {
    console.log(await answer(line.split(" ")));
  } catch (error) {
    console.log(`error ${error}`.replaceAll("\n", " "));
  }
}
for (const client of clients) client.disconnect();
// It is still open, and would keep the process alive.
process.stdin.destroy();
