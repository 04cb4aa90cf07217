// GF(p^K) = GF(p)[X] / (X^K - g): docs/protocol.md, "Fields".

import { type Bytes, stream } from "./bytes.js";

/** K words, the coefficient of X^0 first. */
export type Element = readonly number[];

export class Field {
  readonly zero: Element;
  readonly one: Element;

  /** @param size bytes of a word */
  constructor(
    readonly p: number,
    readonly K: number,
    readonly g: number,
    readonly size: 2 | 3 | 4,
  ) {
    this.zero = new Array<number>(K).fill(0);
    this.one = this.zero.map((_, i) => (i === 0 ? 1 : 0));
  }

  /** A product of words. Doubles are exact: no product here reaches 2^53. */
  times(a: number, b: number): number {
    const high = ((a * (b >>> 16)) % this.p) * 65_536;
    return (high + a * (b & 65_535)) % this.p;
  }

  minus(a: number, b: number): number {
    return a < b ? a - b + this.p : a - b;
  }

  power(base: number, exponent: number): number {
    let result = 1;
    for (let square = base, rest = exponent; rest > 0; rest = Math.floor(rest / 2)) {
      if (rest % 2 === 1) result = this.times(result, square);
      square = this.times(square, square);
    }
    return result;
  }

  /** The root of unity of an order that divides p - 1. */
  root(order: number): number {
    return this.power(this.g, (this.p - 1) / order);
  }

  add(a: Element, b: Element): Element {
    return a.map((word, i) => (word + b[i]!) % this.p);
  }

  subtract(a: Element, b: Element): Element {
    return a.map((word, i) => this.minus(word, b[i]!));
  }

  scale(a: Element, factor: number): Element {
    return a.map((word) => this.times(word, factor));
  }

  multiply(a: Element, b: Element): Element {
    const low = new Array<number>(this.K).fill(0);
    const high = new Array<number>(this.K).fill(0); // times X^K, which is g
    a.forEach((x, i) => {
      if (x === 0) return;
      b.forEach((y, j) => {
        const [into, at] = i + j < this.K ? [low, i + j] : [high, i + j - this.K];
        into[at] = (into[at]! + this.times(x, y)) % this.p;
      });
    });
    return this.add(low, this.scale(high, this.g));
  }

  raise(base: Element, exponent: number): Element {
    let result = this.one;
    for (let square = base, rest = exponent; rest > 0; rest = Math.floor(rest / 2)) {
      if (rest % 2 === 1) result = this.multiply(result, square);
      square = this.multiply(square, square);
    }
    return result;
  }

  encode(words: ArrayLike<number>): Bytes {
    const bytes = new Uint8Array(words.length * this.size);
    for (let i = 0, at = 0; i < words.length; i++) {
      for (let byte = 0, rest = words[i]!; byte < this.size; byte++, rest >>>= 8) {
        bytes[at++] = rest & 255;
      }
    }
    return bytes;
  }

  /** The first words of the stream of a key; integers that are not below p are skipped. */
  async words(key: Bytes, count: number): Promise<Float64Array> {
    const words = new Float64Array(count);
    for (let spare = Math.ceil(count / 32) + 16; ; spare *= 2) {
      const bytes = await stream(key, (count + spare) * this.size);
      let found = 0;
      for (let at = 0; at < bytes.length && found < count; at += this.size) {
        let word = 0;
        for (let byte = this.size - 1; byte >= 0; byte--) word = word * 256 + bytes[at + byte]!;
        if (word < this.p) words[found++] = word;
      }
      bytes.fill(0);
      if (found === count) return words;
    }
  }

  async elements(key: Bytes, count: number): Promise<Element[]> {
    const words = Array.from(await this.words(key, count * this.K));
    return Array.from({ length: count }, (_, i) => words.slice(i * this.K, (i + 1) * this.K));
  }
}

/** The fields of reports, by the bits of a counter. */
export const FIELDS: ReadonlyMap<number, Field> = new Map([
  [16, new Field(64_513, 9, 5, 2)],
  [24, new Field(16_770_049, 6, 11, 3)],
  [32, new Field(4_293_918_721, 4, 19, 4)],
]);
