// Reports by @divviup/dap: a JSON object on the standard input says which, and to whom.
//
// It has the parameters of `Task`, `measurements`, and `now` (seconds since 1970). Printed is a line
// for each report: its bytes in hexadecimal, once the leader has taken it.
import { readFileSync } from "node:fs";
import { Task } from "@divviup/dap";

const { measurements, now, ...parameters } = JSON.parse(readFileSync(0, "utf8"));
const task = new Task(parameters);
for (const measurement of measurements) {
  const report = await task.generateReport(measurement, { timestamp: new Date(1000 * now) });
  await task.sendReport(report);
  console.log(report.encode().toString("hex"));
}
