// JSON that keeps integers apart from floats, and its canonical form: docs/plan.md.

import { refuse } from "./bytes.js";

export class Float {
  constructor(readonly value: number) {}
}
export type Json = bigint | Float | string | boolean | Json[] | Table;
export type Table = { readonly [name: string]: Json };

const TOKEN =
  /[\t\n\r ]*(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|"(?:[^"\\]|\\.)*"|true|false|.)/suy;

const DEEPEST = 32; // tables and lists within each other: plans have four

export function parse(text: string): Json {
  let at = 0;
  let depth = 0;
  const next = (): string => {
    TOKEN.lastIndex = at;
    const token = TOKEN.exec(text)?.[1] ?? refuse("the plan is no JSON: it ends too early");
    at = TOKEN.lastIndex;
    return token;
  };
  const isNext = (token: string): boolean => {
    const before = at;
    if (next() === token) return true;
    at = before;
    return false;
  };
  const expect = (token: string): void => {
    if (!isNext(token)) refuse(`the plan is no JSON: no ${token} at character ${at}`);
  };
  const list = (end: string, item: () => void): void => {
    if (++depth > DEEPEST) refuse(`the plan is more than ${DEEPEST} levels deep`);
    if (!isNext(end)) {
      do item();
      while (isNext(","));
      expect(end);
    }
    depth--;
  };
  const unquote = (token: string): string => {
    try {
      return JSON.parse(token) as string;
    } catch {
      return refuse(`the plan is no JSON: a text is none, before character ${at}`);
    }
  };
  const value = (): Json => {
    const token = next();
    if (token === "true" || token === "false") return token === "true";
    if (token[0] === '"') return unquote(token);
    if (/^-?\d+$/.test(token)) return BigInt(token);
    if (/^-?\d/.test(token)) return new Float(Number(token));
    if (token === "[") {
      const items: Json[] = [];
      list("]", () => items.push(value()));
      return items;
    }
    if (token !== "{") refuse(`the plan is no JSON, or has null, at character ${at}`);
    const table = Object.create(null) as Record<string, Json>;
    list("}", () => {
      const name = next();
      if (name[0] !== '"') refuse(`the plan is no JSON: no name at character ${at}`);
      const key = unquote(name);
      if (key in table) refuse(`the plan has the entry "${key}" twice`);
      expect(":");
      table[key] = value();
    });
    return table;
  };
  const parsed = value();
  if (!/^[\t\n\r ]*$/.test(text.slice(at))) refuse("the plan is no JSON: more comes after it");
  return parsed;
}

export const isTable = (value: Json | undefined): value is Table =>
  typeof value === "object" && !(value instanceof Float) && !Array.isArray(value);

/** An entry that was read as an integer, within bounds. */
export function integer(table: Table, name: string, low: number, high: number): number {
  const value = Number(table[name]);
  if (value < low || value > high) refuse(`${name} must be from ${low} to ${high}, not ${value}`);
  return value;
}

const ESCAPES: Record<string, string> = {
  '"': '\\"',
  "\\": "\\\\",
  "\b": "\\b",
  "\t": "\\t",
  "\n": "\\n",
  "\f": "\\f",
  "\r": "\\r",
};

/** A text in double quotes, in ASCII. */
export const quote = (text: string): string =>
  `"${text.replace(
    /[^ -~]|["\\]/g,
    (unit) => ESCAPES[unit] ?? `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  )}"`;

/** A float in the fewest digits that read back as it. */
export function floatText(value: number): string {
  if (!Number.isFinite(value)) refuse("the plan has a number that is not finite");
  const sign = value < 0 || Object.is(value, -0) ? "-" : "";
  const [mantissa, power] = Math.abs(value).toExponential().split("e") as [string, string];
  const digits = mantissa.replace(".", "");
  const e = Number(power) + 1; // the value is 0.DIGITS times 10^e
  if (e <= -4 || e > 16) {
    const tail = digits.length > 1 ? `.${digits.slice(1)}` : "";
    const exponent = String(Math.abs(e - 1)).padStart(2, "0");
    return `${sign}${digits[0]}${tail}e${e < 1 ? "-" : "+"}${exponent}`;
  }
  if (e <= 0) return `${sign}0.${"0".repeat(-e)}${digits}`;
  return `${sign}${digits.slice(0, e).padEnd(e, "0")}.${digits.slice(e) || "0"}`;
}

/** One line without blanks, names in ascending order of their code points. */
export function canonical(value: Json): string {
  if (typeof value === "bigint" || typeof value === "boolean") return String(value);
  if (typeof value === "string") return quote(value);
  if (value instanceof Float) return floatText(value.value);
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  const names = Object.keys(value).sort(); // ASCII, whose order is that of code points
  return `{${names.map((name) => `${quote(name)}:${canonical(value[name]!)}`).join(",")}}`;
}
