// What a registrar signed of plans, and which plans a client runs by it.

import "fake-indexeddb/auto";
import assert from "node:assert/strict";
import { test } from "node:test";

import { type Bytes, fromHex, join, label, sha256, toHex, u32, utf8 } from "../src/bytes.js";
import { type Identity, makeIdentity, sign } from "../src/identity.js";
import { quote } from "../src/json.js";
import { Outbox, type World } from "../src/outbox.js";
import { readSignedPlan } from "../src/plan.js";
import { Record } from "../src/record.js";
import { report } from "../src/report.js";
import { readRevocation, readSignature } from "../src/signature.js";
import { BASE, published, vectors } from "./given.js";

const POLICY = { minHonest: 2 };
const PURPOSE = "fruit 2026";
const DAY = 86_400;
const all: { [name: string]: any }[] = Object.values(vectors("secagg")).flat() as never;
const found = (name: string) => all.filter((each) => each?.["name"] === name);

interface Authority {
  purpose?: string;
  number?: number;
  day?: number;
  replaces?: string[];
}

const counted = (plans: string[]): Bytes[] => [
  u32(plans.length),
  ...plans.map((plan) => fromHex(plan, 32, "plan")),
];

/** A line that a registrar writes. */
async function signed(registrar: Identity, plan: string, said: Authority = {}): Promise<string> {
  const { purpose = PURPOSE, number = 1, day = 30_000, replaces = [] } = said;
  const fields = [await sha256(utf8(purpose)), u32(number), u32(day), ...counted(replaces)];
  const text = join(label("signed plan"), fromHex(plan, 32, "plan"), ...fields);
  const last = new Date(1000 * DAY * day).toISOString().slice(0, 10);
  const words = [toHex(registrar.publicKey), plan, toHex(await sign(registrar, text)), number, last];
  return `fedtally-signature/2 ${words.join(" ")} ${replaces.join(",") || "-"} ${quote(purpose)}\n`;
}

async function revoked(registrar: Identity, plans: string[]): Promise<string> {
  const signature = await sign(registrar, join(label("revocation"), ...counted(plans)));
  const words = [toHex(registrar.publicKey), toHex(signature), plans.join(",")];
  return `fedtally-revocation/1 ${words.join(" ")}\n`;
}

test("lines of the vectors are read", async () => {
  assert.deepEqual([found("signed plan").length, found("revocation").length], [3, 3]);
  for (const { line, fingerprint, purpose, number, last_day, replaced } of found("signed plan")) {
    const registrar = line.split(" ")[1];
    const end = Date.parse(last_day) / 1000 + DAY;
    const expected = { registrar, plan: fingerprint, purpose, number: Number(number), end };
    for (const text of [line, line.trimEnd()]) {
      const read = await readSignature(text, registrar, purpose);
      assert.deepEqual(read, { ...expected, replaces: replaced });
    }
  }
  for (const { line } of found("revocation")) {
    const [, registrar, , list] = line.trimEnd().split(" ");
    const expected = { registrar, revoked: list.split(",") };
    assert.deepEqual(await readRevocation(line, registrar), expected);
  }
});

test("lines that a registrar did not write so are refused", async () => {
  const registrar = await makeIdentity();
  const key = toHex(registrar.publicKey);
  const plans = ["11", "22", "33"].map((byte) => byte.repeat(32));
  const said = { number: 7, replaces: plans.slice(1) };
  const line = await signed(registrar, plans[0]!, said);
  const read = (text: string, pinned = key, purpose = PURPOSE) =>
    readSignature(text, pinned, purpose);
  assert.equal((await read(line)).number, 7);
  const falsified: [string, string, RegExp][] = [
    [plans[0]!, "44".repeat(32), /signature is false/],
    [" 7 ", " 8 ", /signature is false/],
    ["2052-02-20", "2053-02-20", /signature is false/],
    [`${plans[1]},`, "", /signature is false/],
    [`${plans[1]},${plans[2]}`, "-", /signature is false/],
    [`${plans[1]},${plans[2]}`, `${plans[2]},${plans[1]}`, /ascending/],
    [plans[1]!, plans[0]!, /replace itself/],
    [" 7 ", " 07 ", /no signature/],
    [" 7 ", " 0 ", /no signature/],
    [" 7 ", " 4294967296 ", /32 bits/],
    ["2052-02-20", "2052-02-30", /no day/],
    ["2052-02-20", "1969-12-31", /no day/],
    ["/2", "/1", /no signature/],
    ["\n", "\n\n", /no signature/],
    ["\n", " ", /no signature/],
    ['fruit 2026"', 'fruit\\u00202026"', /no text/],
    ['fruit 2026"', 'fruit" 2026"', /no text/],
    ['fruit 2026"', 'fruit"', /for the purpose "fruit"/],
    [key, toHex((await makeIdentity()).publicKey), /by the registrar/],
    [key, key.toUpperCase(), /no signature/],
  ];
  for (const [old, changed, message] of falsified) {
    assert.ok(line.includes(old), old);
    const text = line.replace(old, changed);
    await assert.rejects(read(text), { name: "InputError", message }, changed);
  }
  await assert.rejects(read(line, key, "fruit 2027"), /for the purpose "fruit 2026"/);
  await assert.rejects(read(line, `01${"00".repeat(31)}`), /low order/);
  const other = await makeIdentity();
  const theirs = (await signed(other, plans[0]!, said)).replace(toHex(other.publicKey), key);
  await assert.rejects(read(theirs), /signature is false/);
  const many = Array.from({ length: 33 }, (_, i) => (i + 10).toString(16).padStart(64, "0"));
  await assert.rejects(read(await signed(registrar, plans[0]!, { replaces: many })), /at most 32/);

  const notice = await revoked(registrar, plans);
  assert.deepEqual((await readRevocation(notice, key)).revoked, plans);
  await assert.rejects(readRevocation(notice.replace(`${plans[0]},`, ""), key), /is false/);
  await assert.rejects(readRevocation(line, key), /no revocation/);
  await assert.rejects(readRevocation(notice, toHex(other.publicKey)), /by the registrar/);
});

/** Two servers that take everything. */
const world = (): World & { puts: number } => ({
  puts: 0,
  async fetch(url, { method }) {
    if (method === "PUT") this.puts += 1;
    const type = { "content-type": "application/vnd.fedtally.release+json" };
    const headers = { ...type, date: new Date(1000 * this.now()).toUTCString() };
    const body = JSON.stringify({ server: new URL(url).hostname, state: "open" });
    return new Response(body, { status: method === "PUT" ? 201 : 200, headers });
  },
  now: () => 1_800_000_000,
  sleep: async () => undefined,
  random: () => 0,
  locked: (_, work) => work(),
});

test("a client reports under plans that are signed and have not ended", async () => {
  const registrar = await makeIdentity();
  const key = toHex(registrar.publicKey);
  const record = await Record.open("signed");
  const identity = await record.enrol();
  const files = await Promise.all(
    [3, 4, 5, 6].map((num_rounds) => published({ ...BASE, num_rounds })),
  );
  const prints = files.map(([, print]) => print);
  const attempt = async (i: number, release: number, said: Authority = {}) => {
    const line = await signed(registrar, prints[i]!, said);
    const plan = await readSignedPlan(files[i]![0], line, key, said.purpose ?? PURPOSE, POLICY);
    const outside = world();
    const servers = { helper: "https://helper", leader: "https://leader" };
    const outbox = new Outbox(record, plan, servers, outside);
    const fate = await outbox.report(release, identity, 1).catch((e) => e);
    const isSpent = (await record.entry(`${prints[i]}/${release}`)) !== null;
    assert.deepEqual([isSpent, outside.puts], fate === "accepted" ? [true, 2] : [false, 0]);
    return fate === "accepted" ? fate : String(fate.message);
  };
  const other = await signed(registrar, prints[1]!);
  const swapped = readSignedPlan(files[0]![0], other, key, PURPOSE, POLICY);
  await assert.rejects(swapped, /its fingerprint differs/);

  const today = 1_800_000_000 / DAY; // 20,833 days and 8 hours
  assert.match(await attempt(0, 0, { day: Math.floor(today) - 1 }), /last day is over/);
  assert.equal(await attempt(0, 0, { day: Math.floor(today) }), "accepted");
  assert.equal(await attempt(1, 0, { number: 2 }), "accepted");
  assert.equal(await attempt(0, 1), "accepted"); // it has not ended
  assert.match(await attempt(2, 0, { number: 2 }), /has the number 2, and this one 2/);
  assert.match(await attempt(2, 0), /has the number \d, and this one 1/);
  assert.equal(await attempt(2, 0, { purpose: "pears" }), "accepted"); // numbers count within it
  assert.equal(await attempt(0, 2, { number: 3, replaces: [prints[1]!] }), "accepted");
  assert.match(await attempt(1, 1, { number: 2 }), /was replaced or revoked/);
  assert.match(await attempt(1, 1, { number: 9 }), /was replaced or revoked/);

  await record.revoke(await readRevocation(await revoked(registrar, [prints[2]!]), key));
  assert.match(await attempt(2, 1, { purpose: "pears" }), /was replaced or revoked/);
  const stranger = await makeIdentity(); // who ends no plan of another registrar
  const theirs = await revoked(stranger, [prints[3]!]);
  await record.revoke(await readRevocation(theirs, toHex(stranger.publicKey)));
  assert.equal(await attempt(3, 0, { number: 4 }), "accepted");
});

test("nothing is drawn for a plan whose last day is over", async () => {
  const registrar = await makeIdentity();
  const [text, print] = await published(BASE);
  const key = toHex(registrar.publicKey);
  const line = await signed(registrar, print, { day: 20_000 });
  const plan = await readSignedPlan(text, line, key, PURPOSE, POLICY);
  const made = (time: number) => report(plan, registrar, 1, { round: 0, time });
  await made(20_001 * DAY - 1);
  await assert.rejects(made(20_001 * DAY), /last day is over/);
});

test("a record of version 1 keeps its key and gets what it lacks", async () => {
  const made = await makeIdentity();
  await new Promise<void>((resolve) => {
    const asked = indexedDB.open("old", 1);
    asked.onupgradeneeded = () => {
      asked.result.createObjectStore("identity").add(made, "key");
      asked.result.createObjectStore("releases", { keyPath: "name" });
    };
    asked.onsuccess = () => {
      asked.result.close();
      resolve();
    };
  });
  const record = await Record.open("old");
  assert.deepEqual((await record.identity())!.publicKey, made.publicKey);
  await record.revoke({ registrar: "r", revoked: ["p"] });
});
