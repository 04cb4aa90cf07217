// Vectors of any form, also of such as no honest client makes.

import type { OneHot, RowSums } from "../src/circuit.js";
import type { Element } from "../src/field.js";
import type { Vector } from "../src/frames.js";

export function anyVector(circuit: OneHot, counters: readonly number[], e: number): Vector {
  const { field, widths } = circuit;
  const residues = counters.map((each) => (each < 0 ? each + field.p : each));
  const ones = new Array<number>(circuit.checksumWords).fill(1);
  const words = Float64Array.from([...residues, ...ones, ...(circuit.abstain ? [e] : [])]);
  const rows = (r1: Element, r2: Element): RowSums[] => {
    let start = 0;
    return widths.map((width) => {
      let [z, y, s] = [field.zero, field.zero, field.zero];
      for (let cell = 0; cell < width; cell++) {
        const weight = circuit.weight(cell, r1, r2);
        const word = residues[start + cell]!;
        z = field.add(z, field.scale(weight, word));
        y = field.add(y, field.scale(field.multiply(weight, weight), word));
        s = field.add(s, field.scale(field.one, word));
      }
      start += width;
      return { z, y, s };
    });
  };
  return { words, e, rows };
}
