// What a registrar signs of plans: docs/protocol.md, "Enrolment".

import { type Bytes, fromHex, join, label, refuse, sha256, u32, utf8 } from "./bytes.js";
import { checkName, registrarsKey } from "./identity.js";
import { quote } from "./json.js";

/** A registrar's signature of a plan, which was checked. */
export interface Signature {
  /** The registrar's key, hexadecimal digits. */
  readonly registrar: string;
  /** The fingerprint of the plan. */
  readonly plan: string;
  readonly purpose: string;
  /** Of two plans of a purpose the later one has the larger number. */
  readonly number: number;
  /** The first second after the plan's last day, since 1970. */
  readonly end: number;
  /** Fingerprints of plans that end with this one. */
  readonly replaces: readonly string[];
}

/** A registrar's notice that plans have ended, which was checked. */
export interface Revocation {
  readonly registrar: string;
  readonly revoked: readonly string[];
}

const KEY = "([0-9a-f]{64})";
const PLANS = "[0-9a-f]{64}(?:,[0-9a-f]{64})*";
const SIGNED = RegExp(
  `^fedtally-signature/2 ${KEY} ${KEY} ([0-9a-f]{128}) ` +
    `([1-9]\\d{0,9}) (\\d{4}-\\d\\d-\\d\\d) (-|${PLANS}) (".*")\\n?$`,
);
const REVOKED = RegExp(`^fedtally-revocation/1 ${KEY} ([0-9a-f]{128}) (${PLANS})\\n?$`);
const DAY = 86_400;

/** Fingerprints in ascending order, joined by commas, behind their number. */
function counted(plans: readonly string[]): Bytes[] {
  const isAscending = plans.every((plan, i) => i === 0 || plans[i - 1]! < plan);
  if (!isAscending || plans.length > 32) refuse("plans are at most 32, in ascending order");
  return [u32(plans.length), ...plans.map((plan) => fromHex(plan, 32, "a fingerprint"))];
}

/** Refuses what is not by the registrar that the caller pinned. */
async function verify(named: string, registrar: string, signature: string, ...parts: Bytes[]) {
  const key = registrarsKey(registrar);
  if (named !== registrar) refuse(`it is by the registrar ${named}, not by the one given`);
  const made = await crypto.subtle.importKey("raw", key, "Ed25519", false, ["verify"]);
  const bytes = fromHex(signature, 64, "a signature");
  if (!(await crypto.subtle.verify("Ed25519", made, bytes, join(...parts)))) {
    refuse("the registrar's signature is false");
  }
}

/** The purpose that a line quotes, as `quote` writes it. */
function unquoted(text: string): string {
  let purpose: unknown;
  try {
    purpose = JSON.parse(text);
  } catch {}
  if (typeof purpose !== "string" || quote(purpose) !== text) refuse("the purpose is no text");
  checkName(purpose);
  return purpose;
}

/**
 * Reads the line of a signature file, as `fedtally keys sign` writes it.
 *
 * @param registrar the key that this client pinned: never one that came with the signature
 * @param purpose what this client is enrolled for
 * @throws InputError if the line is no such signature; whether it is over is not looked at
 */
export async function readSignature(
  line: string,
  registrar: string,
  purpose: string,
): Promise<Signature> {
  const found = SIGNED.exec(line) ?? refuse("the line is no signature of a plan");
  const [, named, plan, signature, digits, lastDay, list, quoted] = found as unknown as string[];
  const number = Number(digits);
  if (number >= 2 ** 32) refuse("the number of a plan has at most 32 bits");
  const start = Date.parse(`${lastDay}T00:00:00Z`) / 1000;
  const isDay = start >= 0 && new Date(1000 * start).toISOString().startsWith(lastDay!);
  if (!isDay) refuse(`${lastDay} is no day from 1970 on`);
  const replaces = list === "-" ? [] : list!.split(",");
  if (replaces.includes(plan!)) refuse("a plan cannot replace itself");
  if (unquoted(quoted!) !== purpose) refuse(`the plan is signed for the purpose ${quoted}`);
  const signed = [label("signed plan"), fromHex(plan, 32, "a fingerprint")];
  const said = [await sha256(utf8(purpose)), u32(number), u32(start / DAY), ...counted(replaces)];
  await verify(named!, registrar, signature!, ...signed, ...said);
  return { registrar, plan: plan!, purpose, number, end: start + DAY, replaces };
}

/** Reads the line of a revocation file, as `fedtally keys revoke` writes it; likewise. */
export async function readRevocation(line: string, registrar: string): Promise<Revocation> {
  const [, named, signature, list] = (REVOKED.exec(line) ??
    refuse("the line is no revocation")) as unknown as string[];
  const revoked = list!.split(",");
  await verify(named!, registrar, signature!, label("revocation"), ...counted(revoked));
  return { registrar, revoked };
}
