// The circuit of a sketch or a histogram, and the proof: docs/protocol.md.

import type { Element, Field } from "./field.js";

/** What the circuit says of one row: z, y and s of the specification, for a pair (r1, r2). */
export interface RowSums {
  readonly z: Element;
  readonly y: Element;
  readonly s: Element;
}

/** The inputs of one multiplication. */
export type Product = readonly [Element, Element];

export class OneHot {
  /** Products of the circuit, products of a call, and points of a wire. */
  readonly products: number;
  readonly c: number;
  readonly P: number;
  readonly checksumWords: number;
  private readonly B: number;

  constructor(
    readonly field: Field,
    readonly widths: readonly number[],
    readonly abstain: boolean,
    readonly signed: boolean,
  ) {
    const widest = widths.reduce((a, b) => Math.max(a, b));
    this.B = Math.ceil(Math.sqrt(widest));
    this.checksumWords = Math.ceil(64 / (8 * field.size));
    this.products = 3 * widths.length + (abstain ? 1 : 0);
    [this.c, this.P] = shortest(this.products);
  }

  get counters(): number {
    return this.widths.reduce((a, b) => a + b);
  }

  /** Words of a vector: the counters, the checksum words, and e. */
  get length(): number {
    return this.counters + this.checksumWords + (this.abstain ? 1 : 0);
  }

  /** The factor of a cell of any row. */
  weight(cell: number, r1: Element, r2: Element): Element {
    const row = this.field.raise(r1, Math.floor(cell / this.B));
    return this.field.multiply(row, this.field.raise(r2, cell % this.B));
  }

  /** All products, in order, of what the rows sum to. */
  multiply(rows: readonly RowSums[], e: number, r3: Element): Product[] {
    const { field } = this;
    const products: Product[] = [];
    let factor = r3; // r3^(2 l + 1) at row l
    const next = () => (factor = field.multiply(factor, r3));
    for (const { z, y, s } of rows) {
      products.push([field.multiply(factor, z), z]);
      products.push([field.subtract(field.zero, field.multiply(factor, s)), y]);
      products.push([field.multiply(next(), s), s]);
      next();
    }
    const one = field.scale(field.one, e);
    if (this.abstain) products.push([field.multiply(factor, one), field.subtract(one, field.one)]);
    return products;
  }

  /** The proof of these products, of the seeds of the 2c wires. */
  prove(products: readonly Product[], seeds: readonly Element[]): Element[] {
    const { field, c, P } = this;
    const gadget = Array.from({ length: 2 * P }, () => field.zero);
    for (let j = 0; j < c; j++) {
      const [a, b] = [0, 1].map((side) => {
        const wire = Array.from({ length: P }, (_, k) =>
          k === 0 ? seeds[2 * j + side]! : (products[(k - 1) * c + j]?.[side] ?? field.zero),
        );
        return doubled(field, wire);
      });
      a!.forEach((value, i) => {
        gadget[i] = field.add(gadget[i]!, field.multiply(value, b![i]!));
      });
    }
    return [...seeds, ...gadget.slice(0, 2 * P - 1)];
  }
}

/** Of all numbers of products in a call, the least with the shortest proof; and its points. */
function shortest(products: number): [number, number] {
  let best: [number, number] = [0, Infinity];
  for (let c = 1; c <= products; c++) {
    let P = 1;
    while (P <= Math.ceil(products / c)) P *= 2;
    if (c + P < best[0] + best[1]) best = [c, P];
  }
  return best;
}

/** A polynomial's values at the powers of u, of its values at the powers of w = u^2. */
function doubled(field: Field, values: readonly Element[]): Element[] {
  const P = values.length;
  const w = field.root(P);
  const scaled = transform(field, values, field.power(w, P - 1));
  const inverse = field.power(P, field.p - 2);
  const coefficients = scaled.map((each) => field.scale(each, inverse));
  const zeros = values.map(() => field.zero);
  return transform(field, [...coefficients, ...zeros], field.root(2 * P));
}

/** Values of a polynomial, given by its coefficients, at the powers of a root of unity. */
function transform(field: Field, coefficients: readonly Element[], root: number): Element[] {
  const n = coefficients.length;
  if (n === 1) return [...coefficients];
  const square = field.times(root, root);
  const [even, odd] = [0, 1].map((parity) =>
    transform(
      field,
      coefficients.filter((_, i) => i % 2 === parity),
      square,
    ),
  );
  const values = new Array<Element>(n);
  for (let i = 0, power = 1; i < n / 2; i++, power = field.times(power, root)) {
    const term = field.scale(odd![i]!, power);
    values[i] = field.add(even![i]!, term);
    values[i + n / 2] = field.subtract(even![i]!, term);
  }
  return values;
}
