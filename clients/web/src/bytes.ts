// Bytes, and the hashes of them. All integers are little-endian unless a name says otherwise.

export type Bytes = Uint8Array<ArrayBuffer>;

export class InputError extends Error {
  override readonly name = "InputError";
}

/** Refuses what a caller gave: `throw` as an expression. */
export function refuse(message: string): never {
  throw new InputError(message);
}

export function join(...parts: readonly Uint8Array[]): Bytes {
  const joined = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}

export function unsigned(value: number | bigint, size: 1 | 2 | 4 | 8): Bytes {
  const bytes = new Uint8Array(size);
  let rest = BigInt(value);
  for (let i = 0; i < size; i++, rest >>= 8n) bytes[i] = Number(rest & 255n);
  if (rest !== 0n) throw new RangeError(`${value} does not fit into ${size} bytes`);
  return bytes;
}

export const u8 = (value: number): Bytes => unsigned(value, 1);
export const u32 = (value: number): Bytes => unsigned(value, 4);
export const u64 = (value: number | bigint): Bytes => unsigned(value, 8);

export const isUnicode = (text: string): boolean => !/\p{Surrogate}/u.test(text);

export function utf8(text: string): Bytes {
  if (!isUnicode(text)) refuse("a text has half a character: a lone surrogate");
  return join(new TextEncoder().encode(text));
}

/** The bytes that a quoted label of the specification stands for. */
export const label = (words: string): Bytes => utf8(`fedtally-secagg/1 ${words}`);

export function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function fromHex(text: unknown, size: number, what: string): Bytes {
  if (typeof text !== "string" || text.length !== 2 * size || !/^[0-9a-f]*$/.test(text)) {
    refuse(`${what} must be ${2 * size} lower-case hexadecimal digits`);
  }
  return Uint8Array.from({ length: size }, (_, i) => parseInt(text.slice(2 * i, 2 * i + 2), 16));
}

/** Little-endian bytes as an integer, such as a public key. */
export const toInteger = (bytes: Uint8Array): bigint =>
  bytes.reduceRight((sum, byte) => (sum << 8n) | BigInt(byte), 0n);

const P25519 = 2n ** 255n - 19n;

/** Refuses what is no coordinate of a key; 0, 1 and -1 are of low order in both forms. */
export function checkPoint(value: bigint, lowOrder: readonly bigint[], what: string): void {
  if (value >= P25519) refuse(`${what} is not canonical`);
  if (value <= 1n || value === P25519 - 1n || lowOrder.includes(value)) {
    refuse(`${what} is of low order`);
  }
}

export const equal = (a: Uint8Array, b: Uint8Array): boolean =>
  a.length === b.length && a.every((byte, i) => byte === b[i]);

export async function sha256(...parts: readonly Uint8Array[]): Promise<Bytes> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", join(...parts)));
}

/** HKDF-SHA256 of RFC 5869: one block of 32 bytes. */
export async function hkdf(secret: Bytes, salt: Bytes, info: Bytes): Promise<Bytes> {
  const key = await crypto.subtle.importKey("raw", secret, "HKDF", false, ["deriveBits"]);
  const how = { name: "HKDF", hash: "SHA-256", salt, info };
  return new Uint8Array(await crypto.subtle.deriveBits(how, key, 256));
}

const CHUNK = 131_072;

/** The first `size` bytes of PRG(key): AES-256 in counter mode, in chunks. */
export async function stream(key: Bytes, size: number): Promise<Bytes> {
  const aes = await crypto.subtle.importKey("raw", key, "AES-CTR", false, ["encrypt"]);
  const bytes = new Uint8Array(size);
  for (let chunk = 0; chunk * CHUNK < size; chunk++) {
    const counter = new Uint8Array(16); // be96(chunk) || be32(2)
    new DataView(counter.buffer).setUint32(8, chunk);
    counter[15] = 2;
    const how = { name: "AES-CTR", counter, length: 32 };
    const zeros = new Uint8Array(Math.min(CHUNK, size - chunk * CHUNK));
    bytes.set(new Uint8Array(await crypto.subtle.encrypt(how, aes, zeros)), chunk * CHUNK);
  }
  return bytes;
}
