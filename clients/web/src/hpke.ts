// HPKE (RFC 9180), base mode, one message: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM.

import { type Bytes, join, u8, utf8 } from "./bytes.js";

const NOTHING = new Uint8Array(0);
const KEM = join(utf8("KEM"), Uint8Array.of(0, 0x20));
const SUITE = join(utf8("HPKE"), Uint8Array.of(0, 0x20, 0, 1, 0, 2));

async function hmac(key: Bytes, text: Bytes): Promise<Bytes> {
  const how = { name: "HMAC", hash: "SHA-256" };
  // HMAC pads keys with zeros: 32 of them are the empty key, which WebCrypto refuses
  const padded = key.length === 0 ? new Uint8Array(32) : key;
  const imported = await crypto.subtle.importKey("raw", padded, how, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", imported, text));
}

const extract = (suite: Bytes, salt: Bytes, name: string, secret: Bytes): Promise<Bytes> =>
  hmac(salt, join(utf8("HPKE-v1"), suite, utf8(name), secret));

/** At most one block, 32 bytes. */
async function expand(suite: Bytes, key: Bytes, name: string, info: Bytes, size: number) {
  const labelled = join(Uint8Array.of(0, size), utf8("HPKE-v1"), suite, utf8(name), info);
  return (await hmac(key, join(labelled, u8(1)))).slice(0, size);
}

/** The message's key, from what both sides know: the exchanged secret, and both public keys. */
export async function keys(exchanged: Bytes, encapsulated: Bytes, recipient: Bytes, info: Bytes) {
  const secret = await extract(KEM, NOTHING, "eae_prk", exchanged);
  const both = join(encapsulated, recipient);
  const shared = await expand(KEM, secret, "shared_secret", both, 32);
  const context = join(
    u8(0),
    await extract(SUITE, NOTHING, "psk_id_hash", NOTHING),
    await extract(SUITE, NOTHING, "info_hash", info),
  );
  const scheduled = await extract(SUITE, shared, "secret", NOTHING);
  const key = await expand(SUITE, scheduled, "key", context, 32);
  const iv = await expand(SUITE, scheduled, "base_nonce", context, 12);
  const aes = await crypto.subtle.importKey("raw", key, "AES-GCM", false, ["encrypt", "decrypt"]);
  for (const each of [secret, shared, scheduled, key]) each.fill(0);
  return { aes, how: { name: "AES-GCM", iv } };
}

export async function exchange(ours: CryptoKey, theirs: Bytes): Promise<Bytes> {
  const imported = await crypto.subtle.importKey("raw", theirs, "X25519", false, []);
  const how = { name: "X25519", public: imported };
  return new Uint8Array(await crypto.subtle.deriveBits(how, ours, 256));
}

/** Seals with a given ephemeral key, which must be a fresh one: see `seal`. */
export async function sealFrom(
  ephemeral: CryptoKeyPair,
  recipient: Bytes,
  info: Bytes,
  plaintext: Bytes,
): Promise<Bytes> {
  const raw = await crypto.subtle.exportKey("raw", ephemeral.publicKey);
  const encapsulated = new Uint8Array(raw);
  const exchanged = await exchange(ephemeral.privateKey, recipient);
  const { aes, how } = await keys(exchanged, encapsulated, recipient, info);
  exchanged.fill(0);
  const sealed = await crypto.subtle.encrypt(how, aes, plaintext);
  return join(encapsulated, new Uint8Array(sealed));
}

/** Seals to an X25519 key: the encapsulated key, 32 bytes, the ciphertext, and its tag, 16. */
export async function seal(recipient: Bytes, info: Bytes, plaintext: Bytes): Promise<Bytes> {
  const made = await crypto.subtle.generateKey("X25519", false, ["deriveBits"]);
  return sealFrom(made as CryptoKeyPair, recipient, info, plaintext);
}
