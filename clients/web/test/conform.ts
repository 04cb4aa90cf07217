// Answers what tools/conformance.py asks of this client: a line of JSON for each line.

import { createHash } from "node:crypto";
import { createInterface } from "node:readline";

import { type Bytes, stream, toHex } from "../src/bytes.js";
import { oneHot } from "../src/frames.js";
import { sealFrom } from "../src/hpke.js";
import { canonical, floatText, quote } from "../src/json.js";
import { circuitOf } from "../src/parameters.js";
import { readEntries } from "../src/plan.js";
import { batchOf, cellsOf, fingerprint, type Schedule } from "../src/sketch.js";
import { exchangeKey, hex, open, publicOf } from "./given.js";
import { cellsIn, parametersOf, replay } from "./replay.js";

/** null: what this client does not do. */
type Answer = object | null | Promise<object | null>;

const sha256 = (bytes: Bytes) => createHash("sha256").update(bytes).digest("hex");
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function scheduleOf({ schedule, batches }: any): Schedule {
  if (batches === null) return { kind: schedule };
  return { kind: "batched", batches };
}

function encode(given: any): Answer {
  const { rows, width, items, round } = given;
  const sketch = { seed: hex(given.seed), rows, width, num_rounds: given.num_rounds };
  const counters = Array.from({ length: rows }, () => new Array<bigint>(width).fill(0n));
  for (const [id, weight] of items) {
    cellsOf({ ...sketch, schedule: scheduleOf(given) }, BigInt(id), round).forEach(
      ([cell, sign], row) => {
        counters[row]![cell]! += BigInt(sign) * BigInt(weight);
      },
    );
  }
  return { counters: counters.map((row) => row.map(Number)) };
}

const OPERATIONS: Record<string, (given: any) => Answer> = {
  "sketch: encode": encode,
  "sketch: id of a string": ({ seed, utf8 }) => ({
    id: String(fingerprint(hex(seed), decoder.decode(hex(utf8)))),
  }),
  "plan: fingerprint": async ({ text }) => {
    if (JSON.parse(text).secure_sum?.method !== "two-server") return null;
    const [entries, digest] = await readEntries(text);
    return { canonical: canonical(entries), fingerprint: toHex(digest) };
  },
  "plan: number": ({ value }) => ({ canonical: floatText(value) }),
  "plan: text": ({ value }) => ({ canonical: quote(value) }),
  "plan: batches": ({ num_rounds, batches }) => {
    const rounds = Array.from({ length: batches }, () => [] as number[]);
    for (let i = 0; i < num_rounds; i++) rounds[batchOf(i, num_rounds, batches)]!.push(i);
    return { rounds };
  },
  "secure sum: mask": async ({ key, length }) => ({
    sha256: sha256(await stream(hex(key), length)),
  }),
  "two servers: seal": async ({ secret, ephemeral, info, plaintext }) => {
    const recipient = await publicOf(await exchangeKey(hex(secret)));
    const ours = await exchangeKey(hex(ephemeral));
    return { sealed: toHex(await sealFrom(ours, recipient, hex(info), hex(plaintext))) };
  },
  "two servers: open": async ({ secret, info, sealed }) => ({
    plaintext: toHex(await open(hex(secret), hex(info), hex(sealed))),
  }),
  "proofs: report": async (given) => {
    const circuit = circuitOf(parametersOf(given));
    const { leader, helper } = await replay(given, oneHot(circuit, cellsIn(given)));
    return { leader: sha256(leader), helper: sha256(helper) };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, operation, given } = JSON.parse(line);
  let answer: object;
  try {
    const result = (await OPERATIONS[operation]?.(given)) ?? null;
    answer = result === null ? { id, unknown: true } : { id, result };
  } catch (reason) {
    answer = { id, refused: String(reason) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
