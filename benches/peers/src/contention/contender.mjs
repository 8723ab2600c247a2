// node-redlock as one of many that want the same lock. Arguments: the folder with node_modules, and
// behind a word those of any contender.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [folder, , ports, , key, ttl, least, most, pauseUs] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const Redis = require("ioredis");
const module = require("redlock");
const clients = ports.split(",").map((port) => new Redis(Number(port)));
for (const client of clients) client.on("error", () => {});
const redlock = new module.default(clients);
const name = `bench:${key.padStart(8, "0")}`;
const now = () => process.hrtime.bigint();
const sleep = (us) => new Promise((done) => setTimeout(done, us / 1000));

async function contend(start, end) {
  const lines = [];
  await sleep(Number(start - now()) / 1000);
  for (let begun = now(); begun < end; begun = now()) {
    let held;
    while (!held && now() < end) held = await redlock.acquire([name], Number(ttl)).catch(() => {});
    const granted = now();
    if (!held) {
      lines.push(`vain ${granted - begun}`);
      break;
    }
    const valid = BigInt(Math.max(0, held.expiration - Date.now())) * 1000000n;
    if (granted < end && Number(most) > 0) await sleep(Number(least));
    const letGo = now();
    await held.release().catch(() => {});
    lines.push(`${begun} ${granted} ${letGo} ${granted + valid}`);
    if (Number(pauseUs) > 0) await sleep(Number(pauseUs));
  }
  return lines;
}

await Promise.all(clients.map((client) => client.ping()));
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const [start, end] = line.split(" ").map(BigInt);
  const before = process.cpuUsage();
  const lines = await contend(start, end);
  const { user, system } = process.cpuUsage(before);
  console.log([`cpu ${(user + system) * 1000}`, "thread", ...lines, "end"].join("\n"));
}
for (const client of clients) client.disconnect();
