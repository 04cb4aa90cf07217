// Bundles the library into dist/, and what one report needs of it; prints their sizes and hashes.
// The same sources give the same bytes: versions are exact, and no path or time is in them.
// dist/licences.txt has the licences of what is bundled: whoever hands a bundle on hands it on, too.

import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

import { build } from "esbuild";

const ENTRIES = {
  report: 'export { readPlan } from "./src/plan.ts"; export { report } from "./src/report.ts";',
  fedtally: 'export * from "./src/index.ts";',
};
const here = import.meta.dirname;

mkdirSync(`${here}/dist`, { recursive: true });
const licences = ["../../LICENSE", "node_modules/@noble/hashes/LICENSE"];
const texts = licences.map((path) => readFileSync(`${here}/${path}`, "utf8").trim());
writeFileSync(`${here}/dist/licences.txt`, `${texts.join("\n\n@noble/hashes:\n\n")}\n`);
for (const [name, contents] of Object.entries(ENTRIES)) {
  const { outputFiles } = await build({
    stdin: { contents, resolveDir: here, loader: "ts" },
    absWorkingDir: here,
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    legalComments: "eof",
    write: false,
  });
  const bytes = outputFiles[0].contents;
  writeFileSync(`${here}/dist/${name}.js`, bytes);
  const gzip = gzipSync(bytes, { level: 9 }).length;
  const integrity = `sha384-${createHash("sha384").update(bytes).digest("base64")}`;
  console.log(JSON.stringify({ name, bytes: bytes.length, gzip, integrity }));
}
