// What a client refuses, by name, before anything is made.

import assert from "node:assert/strict";
import { test } from "node:test";

import { checkAlgorithms, MissingAlgorithmError } from "../src/algorithms.js";
import { sha256, toHex } from "../src/bytes.js";
import { makeIdentity, register } from "../src/identity.js";
import { type Policy, readPlan } from "../src/plan.js";
import { type Item, report } from "../src/report.js";
import { BASE, type Entries, KEY, published, RANGE } from "./given.js";

const POLICY: Policy = { minHonest: 2 };

const EVENT = {
  schema: "fedtally-event/1",
  mechanism: "rounded-gaussian",
  rows: 2,
  relation: "zero-out",
  variance: 4,
  max_items: 1,
  participations: 1,
  per_release: 1,
  total_variation: 0,
  trust: "distributed",
};
const PRIVACY = { epsilon: 2, delta: 1e-6, population: "all", not_private: false, event: EVENT };
const PRIVATE = { ...BASE, privacy: PRIVACY };
const WORDS = ["tea", "a caf\u00e9", "\u{1f375}"];
const TEXTS = { ...BASE, domain: { kind: "dictionary", size: 3, public: false } };

const sums = (changes: Entries): Entries => ({
  ...BASE,
  secure_sum: { ...BASE["secure_sum"], ...changes },
});

/** A plan's text and its fingerprint, as its publisher would say it. */
const read = async (entries: Entries, policy = POLICY) =>
  readPlan(...(await published(entries)), policy);

const PLANS: [string, Entries, RegExp][] = [
  ["no secure sum", { ...BASE, secure_sum: undefined }, /two servers, not to none/],
  ["secagg", sums({ method: "secagg" }), /two servers, not to secagg/],
  ["a table for a protocol", sums({ method: { more: [{}] } }), /not to {"more":\[{}\]}/],
  ["no protocol", sums({ method: undefined }), /not to none/],
  ["a table for a schema", { ...BASE, schema: {} }, /schema {} is unknown/],
  ["no proofs", sums({ validity: undefined }), /no validity/],
  ["other proofs", sums({ validity: "most" }), /no validity/],
  ["another schema", { ...BASE, schema: "fedtally-plan/2" }, /fedtally-plan\/2 is unknown/],
  ["another fingerprint", { ...BASE, fingerprint: "00".repeat(32) }, /fingerprint in the file/],
  ["an unknown entry", { ...BASE, colour: 1 }, /unknown entry "colour"/],
  ["an unknown entry of the sum", sums({ colour: 1 }), /unknown entry "colour"/],
  ["no width", { ...BASE, width: undefined }, /lacks the entry "width"/],
  ["no domain", { ...BASE, domain: undefined }, /lacks the entry "domain"/],
  ["a text for a number", { ...BASE, rows: "2" }, /"rows" has another type/],
  ["a float for an integer", { ...BASE, rows: 2.5 }, /"rows" has another type/],
  ["a table in the domain", { ...BASE, domain: { ...RANGE, more: {} } }, /"domain" has another/],
  ["no field", sums({ bits: 20 }), /no field has 20 bits/],
  ["sums beyond the field", sums({ n_max: 40_000 }), /cannot hold the sums/],
  ["noise beyond the field", sums({ noise: 30_000 }), /cannot hold the sums/],
  ["n_max", sums({ n_max: 1 }), /n_max must be/],
  ["min_batch", sums({ min_batch: 2 }), /min_batch must be/],
  ["corrupt", sums({ corrupt: 9 }), /corrupt must be/],
  ["a key of low order", sums({ leader_key: "00".repeat(32) }), /leader's key is of low order/],
  ["1 as a key", sums({ helper_key: KEY("01") }), /helper's key is of low order/],
  ["a key that is not canonical", sums({ leader_key: `ee${"ff".repeat(30)}7f` }), /not canonical/],
  ["a key with the high bit", sums({ leader_key: `09${"00".repeat(30)}80` }), /not canonical/],
  ["one key for both", sums({ helper_key: KEY("09") }), /both servers have one key/],
  ["a short key", sums({ leader_key: "09" }), /leader_key must be 64 lower-case/],
  ["a key in capitals", sums({ leader_key: `AA${"00".repeat(31)}` }), /leader_key must be 64/],
  ["not published", sums({ allow_list: undefined }), /not published: it lacks allow_list/],
  ["several items", { ...BASE, max_items: 2 }, /max_items must be from 1 to 1/],
  ["silos", { ...BASE, people: 2 }, /silos/],
  ["an open domain", { ...BASE, spelling: { rows: 2, width: 8 } }, /no open domain/],
  ["a domain of another kind", { ...BASE, domain: { ...RANGE, kind: "open" } }, /kind open/],
  ["a range of another size", { ...BASE, domain: { ...RANGE, size: 8 } }, /do not fit its size/],
  ["a domain that is not said to be public", { ...BASE, domain: { ...RANGE, public: 1 } }, /if it/],
  ["nobody", { ...BASE, num_clients: 0 }, /num_clients must be from 1/],
  ["more in a round than in all", { ...BASE, num_clients: 9 }, /max_round_clients must be from 1/],
  ["more in all than in the rounds", { ...BASE, num_clients: 31 }, /rounds cannot hold/],
  ...(["schema", "mechanism", "relation", "trust"] as const).map(
    (name): [string, Entries, RegExp] => [
      `another ${name}`,
      { ...BASE, privacy: { ...PRIVACY, event: { ...EVENT, [name]: "another" } } },
      RegExp(`the event's ${name} another is unknown`),
    ],
  ),
  ["no epsilon", { ...BASE, privacy: { ...PRIVACY, epsilon: 0 } }, /out of range/],
  ["delta of 1", { ...BASE, privacy: { ...PRIVACY, delta: 1.5 } }, /out of range/],
  ["bounds that are floats", { ...BASE, domain: { ...RANGE, last: 4.5 } }, /no integers/],
  ["bounds that are truth values", { ...BASE, domain: { ...RANGE, first: false } }, /no integers/],
  ["length", sums({ length: 17 }), /length must be from 16 to 16/],
  ["a schedule", { ...BASE, schedule: "batched:03" }, /schedule batched:03/],
  ["more batches than rounds", { ...BASE, schedule: "batched:4" }, /schedule batched:4/],
  ["an encoding", { ...BASE, encoding: "sketch" }, /encoding sketch/],
  ["a histogram of another size", { ...BASE, encoding: "histogram" }, /one counter for each/],
  ["a seed", { ...BASE, seed: "00" }, /seed must be 64/],
];

test("plans that no report can be made for are refused", async () => {
  await read(BASE);
  for (const [what, entries, message] of PLANS) {
    await assert.rejects(read(entries), { name: "InputError", message }, what);
  }
});

test("a plan is the one of the trusted fingerprint, or none", async () => {
  const [text] = await published(BASE);
  const [, other] = await published({ ...BASE, num_rounds: 4 });
  await assert.rejects(readPlan(text, other, POLICY), /its fingerprint differs/);
});

test("texts that are no plan are refused", async () => {
  const texts: [string, RegExp][] = [
    ["", /ends too early/],
    ["{", /ends too early/],
    ["[]", /no table/],
    ["1", /no table/],
    ['{"rows":null}', /has null/],
    ['{"rows":01}', /no \} at/],
    ['{"a":1,"a":1}', /the entry "a" twice/],
    ['{"a":1}}', /more comes after/],
    ['{"a" 1}', /no : at/],
    ["{'a':1}", /no name/],
    ['{"a":1,}', /no name/],
    ['{"a":[1 2]}', /no \] at/],
    ['{"a":"', /a text is none/],
    ['{"a":"\\x"}', /a text is none/],
    ['{"a":"\n"}', /a text is none/],
    ['{"\\u12":1}', /a text is none/],
    ["[".repeat(2 ** 20), /levels deep/],
    ['{"a":'.repeat(33), /levels deep/],
    [`${"[".repeat(32)}${"]".repeat(32)}`, /no table/],
    [`[${"[],".repeat(40)}[]]`, /no table/],
    [" ".repeat(2 ** 20 + 1), /at most 2\^20 bytes/],
  ];
  for (const [text, message] of texts) {
    await assert.rejects(
      readPlan(text, "", POLICY),
      { name: "InputError", message },
      text.slice(0, 20),
    );
  }
  const target = { linf: "HUGE", failure_probability: 0.5, recovery: "joint" };
  const huge = JSON.stringify({ ...PRIVATE, target }).replace('"HUGE"', "1e999");
  await assert.rejects(readPlan(huge, "", POLICY), /not finite/);
});

test("a plan outside of the client's policy is refused", async () => {
  const policies: [Policy, RegExp][] = [
    [{ minHonest: 5 }, /4 honest clients: below 5/],
    [{ minHonest: 1 }, /at least 2/],
    [{ minHonest: 2, corrupt: 2 }, /1 corrupt clients, not 2/],
    [{ minHonest: 2, maxBatch: 9 }, /10 reports: above 9/],
    [{ minHonest: 2, maxLength: 15 }, /16 counters: above 15/],
    [{ minHonest: 2, epsilon: 4 }, /epsilon is Infinity/],
  ];
  for (const [policy, message] of policies) await assert.rejects(read(BASE, policy), message);
  await read(PRIVATE, { minHonest: 4, corrupt: 1, epsilon: 2 });
  await assert.rejects(read(PRIVATE, { minHonest: 2, epsilon: 1.5 }), /epsilon is 2: above 1.5/);
  const unsafe = { ...PRIVATE, privacy: { ...PRIVACY, not_private: true } };
  await assert.rejects(read(unsafe, { minHonest: 2, epsilon: 4 }), /epsilon is Infinity/);
});

test("an item outside of the domain is refused, with an epsilon it is nothing", async () => {
  const identity = await makeIdentity();
  const plan = await read(BASE);
  for (const item of [5, -5, 0.5, NaN, 2 ** 60, 10n ** 30n, null]) {
    await assert.rejects(report(plan, identity, item, { round: 0 }), /outside the plan's domain/);
  }
  const hidden = await read(PRIVATE);
  const sizes = new Set<number>();
  for (const item of [5, 0.5, 4, null]) {
    const { helper, leader } = await report(hidden, identity, item, { round: 0 });
    sizes.add(helper.length).add(leader.length);
  }
  assert.equal(sizes.size, 2); // that of the helper's frame, and of the leader's
  await assert.rejects(report(hidden, identity, "4", { round: 0 }), /are integers/);
});

test("rounds and times that are not the plan's are refused", async () => {
  const identity = await makeIdentity();
  const plan = await read(BASE);
  for (const round of [-1, 3, 0.5, NaN]) {
    await assert.rejects(report(plan, identity, 1, { round }), /has no round/);
  }
  await assert.rejects(report(plan, identity, 1, { round: 0, time: -1 }), /no time/);
});

test("candidates are those of the plan", async () => {
  const identity = await makeIdentity();
  const plan = await read(TEXTS);
  const made = (item: Item, candidates?: (string | bigint)[]) =>
    report(plan, identity, item, { round: 0, ...(candidates && { candidates }) });
  await made(WORDS[1]!, WORDS);
  await assert.rejects(made("tea"), /needs its candidates/);
  await assert.rejects(made("tea", ["tea"]), /3 candidates, not 1/);
  await assert.rejects(made("tea", ["tea", "a", 1n]), /of type string/);
  await assert.rejects(made("coffee", WORDS), /outside/);
  await assert.rejects(made(1, WORDS), /are texts/);
  const parts = WORDS.map((word) => Buffer.from(word));
  const prefixed = parts.flatMap((part) => [Buffer.from([part.length, 0, 0, 0, 0, 0, 0, 0]), part]);
  const digest = toHex(await sha256(...prefixed));
  const listed = { kind: "dictionary", size: 3, public: true, sha256: digest };
  const open = await read({ ...BASE, domain: listed });
  await report(open, identity, "tea", { round: 0, candidates: WORDS });
  const others = { round: 0, candidates: ["tea", "a", "b"] };
  await assert.rejects(report(open, identity, "tea", others), /not the plan's/);
  await assert.rejects(read({ ...BASE, domain: { ...listed, public: false } }), /only and always/);
});

test("two reports share nothing: all secrets are drawn anew", async () => {
  const identity = await makeIdentity();
  const plan = await read(BASE);
  const drawn: number[] = [];
  const { getRandomValues } = crypto;
  crypto.getRandomValues = ((array: Uint8Array) => {
    drawn.push(array.length);
    return getRandomValues.call(crypto, array);
  }) as typeof getRandomValues;
  try {
    const options = { round: 0, time: 1 };
    const [a, b] = [
      await report(plan, identity, 1, options),
      await report(plan, identity, 1, options),
    ];
    for (const server of ["helper", "leader"] as const) {
      assert.notDeepEqual(a[server].slice(48, 64), b[server].slice(48, 64), "the nonce");
      assert.notDeepEqual(a[server].slice(204, 300), b[server].slice(204, 300), "the seal");
    }
  } finally {
    crypto.getRandomValues = getRandomValues;
  }
  assert.deepEqual(drawn, [16, 32, 32, 32, 16, 32, 32, 32]);
});

test("a key cannot be exported", async () => {
  const { privateKey, publicKey } = await makeIdentity();
  assert.equal(privateKey.extractable, false);
  for (const form of ["jwk", "pkcs8"] as const) {
    await assert.rejects(crypto.subtle.exportKey(form as "pkcs8", privateKey));
  }
  assert.equal(publicKey.length, 32);
});

test("registrars and purposes that nobody can have are refused", async () => {
  const identity = await makeIdentity();
  const registrar = toHex((await makeIdentity()).publicKey);
  assert.match(
    await register(identity, registrar, "fruit 2026"),
    /^fedtally-proof\/1 .* "fruit 2026"\n$/,
  );
  for (const purpose of [
    "",
    " a",
    "a ",
    "a\nb",
    "e\u0301",
    "a\u00a0b",
    "x".repeat(201),
    "\ud800",
  ]) {
    await assert.rejects(register(identity, registrar, purpose), /purpose/, purpose);
  }
  for (const key of [KEY("01"), KEY("00"), `ec${"ff".repeat(30)}7f`, `01${"00".repeat(30)}80`]) {
    await assert.rejects(register(identity, key, "fruit"), /low order/, key);
  }
  await assert.rejects(register(identity, "ff".repeat(32), "fruit"), /not canonical/);
  await assert.rejects(register(identity, "09", "fruit"), /64 lower-case/);
});

/** WebCrypto without one algorithm: every call that names it fails, as in a browser without it. */
function without(own: Crypto, missing: string): Crypto {
  const names = (of: unknown): string[] =>
    typeof of === "string"
      ? [of]
      : typeof of === "object" && of !== null && "name" in of
        ? [String(of.name), ...names((of as { hash?: unknown }).hash)]
        : [];
  const subtle = new Proxy(own.subtle, {
    get:
      (target, name) =>
      (...given: unknown[]) => {
        const refused = given.some(
          (each) => !(each instanceof CryptoKey) && names(each).includes(missing),
        );
        if (refused) throw new DOMException("unsupported", "NotSupportedError");
        return (target as any)[name](...given);
      },
  });
  const getRandomValues = () => assert.fail("something was drawn");
  return { subtle, getRandomValues } as unknown as Crypto;
}

test("a browser without an algorithm is told its name, before anything is made", async () => {
  const identity = await makeIdentity();
  const plan = await read(BASE);
  const own = globalThis.crypto;
  const set = (value: unknown) =>
    Object.defineProperty(globalThis, "crypto", { value, configurable: true, writable: true });
  try {
    for (const name of ["SHA-256", "HKDF", "HMAC", "AES-CTR", "AES-GCM", "Ed25519", "X25519"]) {
      set(without(own, name));
      const message = `this browser has no ${name}`;
      await assert.rejects(report(plan, identity, 1, { round: 0 }), { message }, name);
      await assert.rejects(makeIdentity(), { name: "MissingAlgorithmError", message }, name);
    }
    set({ ...own, subtle: undefined });
    await assert.rejects(report(plan, identity, 1, { round: 0 }), MissingAlgorithmError);
    await assert.rejects(checkAlgorithms(), /over https or on localhost/);
  } finally {
    set(own);
  }
  await report(plan, identity, 1, { round: 0 });
});
