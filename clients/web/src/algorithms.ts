// What a browser must have: asked before anything is made.

export class MissingAlgorithmError extends Error {
  override readonly name = "MissingAlgorithmError";
}

const AES = (name: string) => (subtle: SubtleCrypto) =>
  subtle.importKey("raw", new Uint8Array(32), name, false, ["encrypt"]);

const NEEDED: readonly (readonly [string, (subtle: SubtleCrypto) => Promise<unknown>])[] = [
  ["SHA-256", (subtle) => subtle.digest("SHA-256", new Uint8Array(1))],
  ["HKDF", (subtle) => subtle.importKey("raw", new Uint8Array(32), "HKDF", false, ["deriveBits"])],
  [
    "HMAC",
    (subtle) => {
      const how = { name: "HMAC", hash: "SHA-256" };
      return subtle.importKey("raw", new Uint8Array(32), how, false, ["sign"]);
    },
  ],
  ["AES-CTR", AES("AES-CTR")],
  ["AES-GCM", AES("AES-GCM")],
  ["Ed25519", (subtle) => subtle.generateKey("Ed25519", false, ["sign", "verify"])],
  ["X25519", (subtle) => subtle.generateKey("X25519", false, ["deriveBits"])],
];

let complete: SubtleCrypto | undefined; // which was asked, and has all of them

/** Throws an error that names the first algorithm that this browser lacks. */
export async function checkAlgorithms(): Promise<void> {
  const subtle = globalThis.crypto?.subtle as SubtleCrypto | undefined;
  if (subtle !== undefined && subtle === complete) return;
  if (subtle === undefined) {
    throw new MissingAlgorithmError(
      "WebCrypto is missing: open the page over https or on localhost",
    );
  }
  for (const [name, probe] of NEEDED) {
    try {
      await probe(subtle);
    } catch (error) {
      throw new MissingAlgorithmError(`this browser has no ${name}`, { cause: error });
    }
  }
  complete = subtle;
}
