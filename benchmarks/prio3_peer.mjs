// A report of Prio3, as the package @divviup/prio3 makes it. Called by prio3_peer.py, in a folder
// where that package is installed; prints {"bytes": ..., "client": ..., "server": ...}, the times
// in microseconds of CPU a report.
import { createRequire } from "node:module";
import { randomBytes } from "node:crypto";
import { pathToFileURL } from "node:url";

const [kind, length, turns] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const require = createRequire(pathToFileURL(`${process.cwd()}/`));
// The package has no entry for require(), so its main file is named.
const file = require.resolve("@divviup/prio3/dist/index.js");
const { Prio3Histogram, Prio3SumVec } = await import(pathToFileURL(file));

const bits = 2; // an entry of a sketch is -1, 0 or +1: SumVec takes it plus one
const chunkLength = Math.round(Math.sqrt(kind === "sumvec" ? bits * length : length));
const vdaf =
  kind === "sumvec"
    ? new Prio3SumVec({ shares: 2, length, bits, chunkLength })
    : new Prio3Histogram({ shares: 2, length, chunkLength });
const measurement =
  kind === "sumvec" ? Array.from({ length }, (_, i) => i % 3) : Math.floor(length / 3);
const key = randomBytes(vdaf.verifyKeySize);

const micros = async (work) => {
  const start = process.cpuUsage();
  const made = await work();
  const { user, system } = process.cpuUsage(start);
  return [user + system, made];
};
const least = { client: Infinity, server: Infinity };
let bytes = 0;
for (let turn = 0; turn < turns; turn += 1) {
  const nonce = randomBytes(vdaf.nonceSize);
  const [client, shares] = await micros(() =>
    vdaf.shard(measurement, nonce, randomBytes(vdaf.randSize)),
  );
  const [server] = await micros(() =>
    vdaf.prepareInit(key, 0, null, nonce, shares.publicShare, shares.inputShares[0]),
  );
  const parts = shares.inputShares.map((share) => vdaf.encodeInputShare(share));
  parts.push(vdaf.encodePublicShare(shares.publicShare));
  bytes = nonce.length + parts.reduce((sum, part) => sum + part.length, 0);
  least.client = Math.min(least.client, client);
  least.server = Math.min(least.server, server);
}
console.log(JSON.stringify({ bytes, ...least }));
