// What tests give that a client draws: keys and secrets from the vectors.

import { readFileSync } from "node:fs";

import { type Bytes, join } from "../src/bytes.js";
import { exchange, keys } from "../src/hpke.js";
import type { Identity } from "../src/identity.js";

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
