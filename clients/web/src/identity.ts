// A client's key, and its enrolment: docs/protocol.md, "Enrolment".

import { checkAlgorithms } from "./algorithms.js";
import {
  type Bytes,
  checkPoint,
  fromHex,
  join,
  label,
  refuse,
  sha256,
  toHex,
  toInteger,
  utf8,
} from "./bytes.js";
import { quote } from "./json.js";

/** A client's Ed25519 key; its private half cannot be exported, and IndexedDB can keep it. */
export interface Identity {
  readonly publicKey: Bytes;
  readonly privateKey: CryptoKey;
}

export async function makeIdentity(): Promise<Identity> {
  await checkAlgorithms();
  const made = await crypto.subtle.generateKey("Ed25519", false, ["sign", "verify"]);
  const { publicKey, privateKey } = made as CryptoKeyPair;
  return { publicKey: new Uint8Array(await crypto.subtle.exportKey("raw", publicKey)), privateKey };
}

export async function sign(identity: Identity, text: Bytes): Promise<Bytes> {
  return new Uint8Array(await crypto.subtle.sign("Ed25519", identity.privateKey, text));
}

/** The y-coordinates of points of low order, beside 0, 1 and -1. */
const LOW_ORDER = [
  0x05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826n,
  0x7a03ac9277fdc74ec6cc392cfa53202a0f67100d760b3cba4fd84d3d706a17c7n,
];

/** The key that the digits of a registrar's public key stand for. */
export function registrarsKey(registrar: string): Bytes {
  const key = fromHex(registrar, 32, "the registrar's key");
  checkPoint(toInteger(key) % 2n ** 255n, LOW_ORDER, "the registrar's key");
  return key;
}

/** Refuses what is no name of a purpose, or of something else. */
export function checkName(name: string, what = "purpose"): void {
  const length = [...name].length;
  if (length < 1 || length > 200) refuse(`a ${what} has 1 to 200 characters, not ${length}`);
  const printable = /^(?! )(?:[^\p{C}\p{Z}]| )+$/u.test(name) && !name.endsWith(" ");
  if (!printable || name.normalize("NFC") !== name) {
    refuse(`a ${what} is printable text in Unicode's normal form C, without blanks at its ends`);
  }
}

/**
 * The proof of possession that `fedtally keys prove` writes: a line for the registrar.
 *
 * @param registrar the registrar's key, 64 hexadecimal digits, from the registrar itself
 * @param purpose what clients are enrolled for, as the registrar words it
 */
export async function register(
  identity: Identity,
  registrar: string,
  purpose: string,
): Promise<string> {
  await checkAlgorithms();
  const key = registrarsKey(registrar);
  checkName(purpose);
  const digest = await sha256(utf8(purpose));
  const signature = await sign(identity, join(label("proof of possession"), key, digest));
  const [name, proof] = [toHex(identity.publicKey), toHex(signature)];
  return `fedtally-proof/1 ${name} ${registrar} ${proof} ${quote(purpose)}\n`;
}
