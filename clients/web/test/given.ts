// What tests give that a client draws: keys and secrets from the vectors.

import { readFileSync } from "node:fs";

import { type Bytes, join, sha256, toHex, utf8 } from "../src/bytes.js";
import { exchange, keys } from "../src/hpke.js";
import type { Identity } from "../src/identity.js";
import { canonical, parse } from "../src/json.js";

export const hex = (text: string): Bytes => join(Buffer.from(text, "hex"));

/** One of the documents in tests/vectors; integers that are no double are texts. */
export function vectors(name: string): any {
  const path = new URL(`../../../../tests/vectors/${name}.json`, import.meta.url);
  const text = readFileSync(path, "utf8").replace(
    /(?<=[[\s]|[^\\]":)(-?\d{16,})(?=[,\]}\s])/g,
    '"$1"',
  );
  return JSON.parse(text);
}

async function pair(
  secret: Bytes,
  name: "Ed25519" | "X25519",
  use: KeyUsage,
): Promise<CryptoKeyPair> {
  const prefix = `302e020100300506032b65${name === "Ed25519" ? "70" : "6e"}04220420`;
  const pkcs8 = join(hex(prefix), secret);
  const privateKey = await crypto.subtle.importKey("pkcs8", pkcs8, name, true, [use]);
  const { x } = await crypto.subtle.exportKey("jwk", privateKey);
  const raw = join(Buffer.from(x!, "base64url"));
  const uses: KeyUsage[] = name === "Ed25519" ? ["verify"] : [];
  return { privateKey, publicKey: await crypto.subtle.importKey("raw", raw, name, true, uses) };
}

export const exchangeKey = (secret: Bytes) => pair(secret, "X25519", "deriveBits");

export async function publicOf(made: CryptoKeyPair): Promise<Bytes> {
  return new Uint8Array(await crypto.subtle.exportKey("raw", made.publicKey));
}

export async function identityOf(secret: Bytes): Promise<Identity> {
  const made = await pair(secret, "Ed25519", "sign");
  return { publicKey: await publicOf(made), privateKey: made.privateKey };
}

/** What a server reads of a message that was sealed to it. */
export async function open(secret: Bytes, info: Bytes, sealed: Bytes): Promise<Bytes> {
  const made = await exchangeKey(secret);
  const exchanged = await exchange(made.privateKey, sealed.slice(0, 32));
  const { aes, how } = await keys(exchanged, sealed.slice(0, 32), await publicOf(made), info);
  return new Uint8Array(await crypto.subtle.decrypt(how, aes, sealed.slice(32)));
}

export type Entries = { [name: string]: any };

export const KEY = (first: string) => `${first}${"0".repeat(62)}`;
export const RANGE = { kind: "range", size: 9, public: true, first: -4, last: 4 };
export const BASE: Entries = {
  rows: 2,
  width: 8,
  schedule: "shared",
  num_rounds: 3,
  num_clients: 30,
  max_round_clients: 10,
  max_items: 1,
  seed: "00".repeat(32),
  domain: RANGE,
  secure_sum: {
    method: "two-server",
    length: 16,
    bits: 16,
    n_max: 10,
    min_batch: 5,
    corrupt: 1,
    leader_key: KEY("09"),
    helper_key: KEY("10"),
    allow_list: "11".repeat(32),
    largest_entry: 1,
    noise: 0,
    validity: "proofs",
  },
};

export const EVENT: Entries = {
  schema: "fedtally-event/1",
  mechanism: "rounded-gaussian",
  rows: 2,
  relation: "zero-out",
  variance: 16,
  max_items: 1,
  participations: 1,
  per_release: 1,
  total_variation: 2 ** -79,
  trust: "distributed",
};
const PRIVACY = { epsilon: 2, delta: 1e-6, population: "all", not_private: false };

/** A plan with changes of its entries, its secure sum, its privacy and its event. */
export const changed = (of: Entries, { sum = {}, privacy, event, ...changes }: Entries): Entries => ({
  ...of,
  secure_sum: { ...of["secure_sum"], ...sum },
  ...((privacy || event || of["privacy"]) && {
    privacy: {
      ...PRIVACY,
      ...of["privacy"],
      ...privacy,
      event: { ...EVENT, ...of["privacy"]?.event, ...event },
    },
  }),
  ...changes,
});

/** A plan to which both servers add noise. */
export const PRIVATE = changed(BASE, { sum: { noise: 46 }, privacy: {} });

/** The text of a plan, and its fingerprint. */
export async function published(entries: Entries): Promise<[string, string]> {
  const text = JSON.stringify(entries, null, 2);
  const floats = text.replace(
    /("(?:epsilon|delta|variance|clip_norm|total_variation)": )(\d+)(?=[,\n])/g,
    "$1$2.0",
  );
  const line = canonical(parse(floats));
  return [text, toHex(await sha256(utf8("fedtally-plan/1\n"), utf8(line)))];
}
