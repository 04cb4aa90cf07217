// What a client refuses, by name, before anything is made.

import assert from "node:assert/strict";
import { test } from "node:test";

import { checkAlgorithms, MissingAlgorithmError } from "../src/algorithms.js";
import { sha256, toHex } from "../src/bytes.js";
import { makeIdentity, register } from "../src/identity.js";
import { type Policy, readPlan, roundsOf } from "../src/plan.js";
import { type Item, report } from "../src/report.js";
import { BASE, changed, type Entries, KEY, PRIVATE, published, RANGE } from "./given.js";

const POLICY: Policy = { minHonest: 2 };

const WORDS = ["tea", "a caf\u00e9", "\u{1f375}"];
const TEXTS = { ...BASE, domain: { kind: "dictionary", size: 3, public: false } };

const sums = (sum: Entries): Entries => changed(BASE, { sum });

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
  [
    "noise beyond the field",
    changed(BASE, { sum: { noise: 183_009 }, event: { variance: 2 ** 28 } }),
    /cannot hold the sums/,
  ],
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
  ["more in a sum than there are", sums({ min_batch: 30, n_max: 40 }), /min_batch clients/],
  ["noise of nobody", sums({ noise: 1 }), /noise must be 0/],
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

/** A histogram, whose noise one trusted party adds. */
const COUNTS = changed(BASE, {
  rows: 1,
  width: 9,
  encoding: "histogram",
  sum: { length: 9 },
  privacy: { delta: 0 },
  event: { rows: 1, encoding: "histogram", trust: "central", mechanism: "geometric", total_variation: 0 },
});
/** A sketch whose noise one trusted party adds to two releases. */
const CENTRAL = changed(BASE, {
  schedule: "batched:2",
  privacy: {},
  event: { relation: "replace-one", trust: "central", collisions: [2, 1] },
});

test("a promise of privacy is one of what the plan opens", async () => {
  const least = 2 ** -80 + 2 ** (5 - 108); // of 16 counters and the number of clients
  const taken: [Entries, Entries][] = [
    [PRIVATE, {}],
    [PRIVATE, { event: { total_variation: least } }],
    [PRIVATE, { event: { total_variation: 4.9e-7 } }],
    [PRIVATE, { event: { clip_norm: Math.SQRT2 } }],
    [PRIVATE, { event: { relation: "replace-one" } }],
    [PRIVATE, { event: { variance: 2 ** -6 }, sum: { noise: 3 } }],
    [PRIVATE, { schedule: "hybrid", event: { participations: 3 } }],
    [PRIVATE, { privacy: { epsilon: 100, delta: 0.03 } }],
    [PRIVATE, { privacy: { not_private: true, delta: 0.99 }, domain: { ...RANGE, public: false } }],
    [COUNTS, {}],
    [CENTRAL, {}],
    [CENTRAL, { event: { total_variation: 2 ** (5 - 108), collisions: [0, 0] } }],
  ];
  for (const [of, changes] of taken) await read(changed(of, changes));
  const refused: [Entries, Entries, RegExp][] = [
    ...["schema", "mechanism", "relation", "trust"].map((name): [Entries, Entries, RegExp] => [
      PRIVATE,
      { event: { [name]: "another" } },
      RegExp(`event's ${name} must be [a-z-/1 ]+, not another`),
    ]),
    [PRIVATE, { event: { relation: "add-remove" } }, /relation must be zero-out or replace-one/],
    [PRIVATE, { event: { mechanism: "skellam" } }, /mechanism must be rounded-gaussian, not/],
    [PRIVATE, { event: { mechanism: "geometric" } }, /mechanism must be rounded-gaussian, not/],
    [CENTRAL, { event: { mechanism: "geometric" } }, /mechanism must be rounded-gaussian, not/],
    [PRIVATE, { sum: { noise: 45 } }, /noise must be 46, that of the plan's privacy, not 45/],
    [PRIVATE, { sum: { noise: 47 } }, /noise must be 46/],
    [PRIVATE, { event: { variance: 15 } }, /noise must be 45/],
    [CENTRAL, { sum: { noise: 46 } }, /noise must be 0/],
    [PRIVATE, { event: { variance: 2 ** -7 } }, /variance must be/],
    [PRIVATE, { event: { variance: 2 ** 30 } }, /variance must be/],
    [COUNTS, { event: { variance: 2 ** -21 } }, /variance must be/],
    [PRIVATE, { event: { total_variation: least * (1 - 1e-15) } }, /total_variation must be/],
    [PRIVATE, { event: { total_variation: 1.5 } }, /total_variation must be/],
    [PRIVATE, { event: { total_variation: 5e-7 } }, /delta must exceed 0.000001,/],
    [CENTRAL, { event: { total_variation: 2 ** (4 - 108) } }, /total_variation must be/],
    [COUNTS, { event: { total_variation: 2 ** -79 } }, /total_variation must be from 0 to 0/],
    [PRIVATE, { event: { rows: 3 } }, /rows must be from 2/],
    [PRIVATE, { event: { max_items: 2 } }, /max_items must be/],
    [PRIVATE, { event: { encoding: "histogram" } }, /encoding is not the plan's/],
    [PRIVATE, { event: { encoding: "sketch" } }, /encoding is not the plan's/],
    [COUNTS, { event: { encoding: undefined } }, /encoding is not the plan's/],
    [PRIVATE, { event: { honest_survivors: 4 } }, /has no honest_survivors/],
    [PRIVATE, { event: { silos_per_person: 2 } }, /has no silos_per_person/],
    [PRIVATE, { event: { clip_norm: 1.4 } }, /clip_norm must be/],
    [COUNTS, { event: { clip_norm: 2 } }, /has no clip_norm/],
    [PRIVATE, { event: { relation: "replace-one", collisions: [1, 1] } }, /collisions are wrong/],
    [CENTRAL, { event: { relation: "zero-out" } }, /collisions are wrong/],
    [CENTRAL, { event: { collisions: [3, 1] } }, /collisions are wrong/],
    [CENTRAL, { event: { collisions: [1, 2] } }, /collisions are wrong/],
    [CENTRAL, { event: { collisions: [1, -1] } }, /collisions are wrong/],
    [PRIVATE, { event: { participations: 0 } }, /participations must be from 1 to 3/],
    [PRIVATE, { event: { participations: 4 } }, /participations must be from 1 to 3/],
    [PRIVATE, { event: { participations: 2 } }, /several rounds of a release/],
    [PRIVATE, { event: { participations: 2, per_release: 2 } }, /several rounds of a release/],
    [PRIVATE, { event: { per_release: 2 } }, /per_release must be from 1 to 1/],
    [PRIVATE, { privacy: { epsilon: 0 } }, /epsilon must be/],
    [PRIVATE, { privacy: { epsilon: 101 } }, /epsilon must be/],
    [PRIVATE, { privacy: { delta: 0 } }, /delta must be/],
    [PRIVATE, { privacy: { delta: 1, not_private: true } }, /delta must be/],
    [PRIVATE, { privacy: { delta: 0.04 } }, /delta must be below 1 \/ num_clients/],
    [COUNTS, { privacy: { delta: 1e-6 } }, /delta must be from 0 to 0/],
    [PRIVATE, { domain: { ...RANGE, public: false } }, /the domain must be public/],
    [PRIVATE, { privacy: { population: "" } }, /a population has 1 to 200 characters/],
  ];
  for (const [of, changes, message] of refused) {
    const what = JSON.stringify(changes);
    await assert.rejects(read(changed(of, changes)), { name: "InputError", message }, what);
  }
});

test("rounds of a release are those of its batch", async () => {
  const rounds = async (changes: Entries, of = PRIVATE) => {
    const plan = await read(changed(of, { num_rounds: 7, ...changes }));
    const found = Array.from({ length: plan.releases }, (_, i) => roundsOf(plan, i));
    assert.throws(() => roundsOf(plan, plan.releases), /has no release/);
    return JSON.stringify(found);
  };
  const each = "[[0,1],[1,2],[2,3],[3,4],[4,5],[5,6],[6,7]]";
  assert.equal(await rounds({}), "[[0,7]]");
  assert.equal(await rounds({ schedule: "batched:3" }), "[[0,3],[3,5],[5,7]]");
  for (const schedule of ["hybrid", "fresh"]) assert.equal(await rounds({ schedule }), each);
  for (const schedule of ["shared", "batched:3"]) assert.equal(await rounds({ schedule }, BASE), each);
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
    [{ minHonest: NaN }, /at least 2/], // as of a setting that is not there
    [{ minHonest: 2, corrupt: NaN }, /corrupt clients, not NaN/],
    [{ minHonest: 2, maxBatch: NaN }, /reports: above NaN/],
    [{ minHonest: 2, maxLength: NaN }, /counters: above NaN/],
    [{ minHonest: 2, epsilon: NaN }, /above NaN/],
  ];
  for (const [policy, message] of policies) await assert.rejects(read(BASE, policy), message);
  await read(PRIVATE, { minHonest: 4, corrupt: 1, epsilon: 2 });
  await assert.rejects(read(PRIVATE, { minHonest: 2, epsilon: 1.5 }), /epsilon is 2: above 1.5/);
  const unsafe = changed(PRIVATE, { privacy: { not_private: true } });
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
  for (const item of ["tea", "coffee", null]) { // whoever holds nothing is refused likewise
    await assert.rejects(made(item), /needs its candidates/);
    await assert.rejects(made(item, ["tea"]), /3 candidates, not 1/);
  }
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
