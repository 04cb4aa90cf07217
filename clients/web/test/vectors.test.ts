// The known answers of the specifications, byte for byte.

import assert from "node:assert/strict";
import { createCipheriv, createHash } from "node:crypto";
import { test } from "node:test";

import { type Bytes, stream, toHex } from "../src/bytes.js";
import { oneHot } from "../src/frames.js";
import { sealFrom } from "../src/hpke.js";
import { canonical, Float, floatText, parse, quote } from "../src/json.js";
import { circuitOf } from "../src/parameters.js";
import { readEntries } from "../src/plan.js";
import { batchOf, cellsOf, fingerprint, type Schedule } from "../src/sketch.js";
import { anyVector } from "./cheats.js";
import { exchangeKey, hex, publicOf, vectors } from "./given.js";
import { cellsIn, parametersOf, replay } from "./replay.js";

const VALIDITY = vectors("validity");
const REPORTS = [...VALIDITY.proofs, ...VALIDITY.batches.flatMap((batch: any) => batch.reports)];

function same(frame: Bytes, given: any, what: string): void {
  assert.equal(toHex(frame.slice(0, 48)), given.header, what);
  assert.equal(createHash("sha256").update(frame).digest("hex"), given.sha256, what);
}

for (const [number, given] of REPORTS.entries()) {
  const circuit = circuitOf(parametersOf(given));
  const title = `${number}: ${given.case}, ${given.widths} mod ${given.p}`;
  if (given.verdict === "valid") {
    test(`a client makes ${title}`, async () => {
      const frames = await replay(given, oneHot(circuit, cellsIn(given)));
      same(frames.helper, given.frames.helper, "the helper's frame");
      same(frames.leader, given.frames.leader, "the leader's frame");
    });
  } else if (given.case !== "proof changed" && given.case !== "another digest") {
    test(`a client that lies makes ${title}`, async () => {
      const frames = await replay(given, anyVector(circuit, given.vector, given.e));
      same(frames.leader, given.frames.leader, "the leader's frame");
    });
  }
}

test("vectors have reports of all fields, and of sketches and histograms with nothing", () => {
  const seen = (test: (given: any) => boolean) =>
    new Set(REPORTS.filter((each) => each.verdict === "valid" && test(each)).map((each) => each.p));
  assert.equal(seen(() => true).size, 3);
  assert.equal(seen((each) => !each.abstain).size >= 1, true);
  assert.equal(seen((each) => !each.signed && each.e === 0).size, 1);
});

test("a stream goes on in the next chunk, as AES-256-GCM under the chunk's number", async () => {
  const key = hex("07".repeat(32));
  const chunks = [0, 1, 2].map((chunk) => {
    const nonce = Buffer.alloc(12);
    nonce.writeUInt32BE(chunk, 8);
    return createCipheriv("aes-256-gcm", key, nonce).update(Buffer.alloc(131_072));
  });
  const expected = Buffer.concat(chunks).subarray(0, 2 * 131_072 + 5);
  assert.ok(expected.equals(await stream(key, expected.length)));
});

test("seals are those of the vectors", async () => {
  for (const each of vectors("two_server").hpke) {
    if (!each.success) continue;
    const recipient = await publicOf(await exchangeKey(hex(each.secret)));
    const ephemeral = await exchangeKey(hex(each.ephemeral));
    const sealed = await sealFrom(ephemeral, recipient, hex(each.info), hex(each.plaintext));
    assert.equal(toHex(sealed), each.sealed);
  }
});

test("keys of servers are refused as in the vectors", () => {
  const given = VALIDITY.proofs[0];
  const seen = { yes: 0, no: 0 };
  for (const { changes, success } of vectors("two_server").parameters) {
    for (const name of ["leader_key", "helper_key"] as const) {
      if (changes[name] === undefined) continue;
      const parameters = { ...parametersOf(given), [name]: hex(changes[name]) };
      if (success) circuitOf(parameters);
      else assert.throws(() => circuitOf(parameters), /key/);
      seen[success ? "yes" : "no"]++;
    }
  }
  assert.ok(seen.no >= 14, JSON.stringify(seen));
});

function scheduleOf(text: string): Schedule {
  const [kind, batches] = text.split(":");
  return kind === "batched" ? { kind, batches: Number(batches) } : { kind: kind as "shared" };
}

test("sketches are those of the vectors", () => {
  const seen = new Set<string>();
  for (const each of vectors("sketch").sketches) {
    // the largest take as long as all others, and are replayed in Python
    if (!each.success || each.items.flat().length * each.rows > 30) continue;
    seen.add(each.schedule);
    const { rows, width, num_rounds } = each;
    const sketch = { seed: hex(each.seed), rows, width, num_rounds };
    const schedule = scheduleOf(each.batches === null ? each.schedule : `batched:${each.batches}`);
    each.items.forEach((items: [number, number][] | null, round: number) => {
      if (items === null) return;
      const counters = Array.from({ length: rows }, () => new Array<bigint>(width).fill(0n));
      for (const [id, weight] of items) {
        cellsOf({ ...sketch, schedule }, BigInt(id), round).forEach(([cell, sign], row) => {
          counters[row]![cell]! += BigInt(sign) * BigInt(weight);
        });
      }
      assert.deepEqual(
        counters.map((row) => row.map(Number)),
        each.counters[round],
        each.name,
      );
    });
  }
  assert.equal(seen.size, 4);
});

test("rounds are in the batches of the vectors, and strings have their ids", () => {
  for (const { num_rounds, batches, rounds } of vectors("plan").batches) {
    rounds.forEach((batch: number[], number: number) => {
      for (const round of batch) assert.equal(batchOf(round, num_rounds, batches), number);
    });
  }
  for (const { seed, strings } of vectors("sketch").fingerprints) {
    for (const { text, id } of strings) {
      assert.equal(fingerprint(hex(seed), text), BigInt(id), text);
    }
  }
});

test("plans have the canonical forms and the fingerprints of the vectors", async () => {
  const { plans, numbers, texts } = vectors("plan");
  for (const { value, canonical } of numbers) {
    assert.equal(floatText(Number(value)), canonical);
  }
  for (const { value, canonical } of texts) assert.equal(quote(value), canonical);
  let seen = 0;
  for (const { canonical: line, fingerprint } of plans) {
    assert.equal(canonical(parse(line)), line);
    if (JSON.parse(line).secure_sum?.method !== "two-server") continue;
    const [entries, digest] = await readEntries(line);
    assert.equal(canonical(entries), line);
    assert.equal(toHex(digest), fingerprint);
    seen++;
  }
  assert.ok(seen >= 5, `${seen} plans`);
  assert.equal(canonical(new Float(25)), "25.0");
});
