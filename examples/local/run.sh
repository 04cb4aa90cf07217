#!/usr/bin/env bash
# A whole campaign on one machine: a registrar, ten clients with an agent each, and a server that
# is killed in the middle and goes on. docs/deploying.md explains each step.
#
#   examples/local/run.sh [FOLDER]       FOLDER keeps the files; by default they are deleted
set -euo pipefail
umask 077

folder=${1:-$(mktemp -d)}
if [[ -n $(ls -A "$folder" 2>/dev/null) ]]; then
  echo "$folder has files: name an empty folder" >&2; exit 1
fi
mkdir -p "$folder"/{proofs,clients} && cd "$folder"
agents=()
end() {  # no process outlives the script
  ((${#agents[@]} == 0)) || kill "${agents[@]}" 2>/dev/null || true
  wait
  [[ -n ${1:-} ]] || rm -rf "$folder"
}
trap 'end "${1:-}"' EXIT
people=(ada ben cleo dan eva finn gus hana ida jon)
fruits=(apple apple apple pear apple pear plum apple pear apple)
printf '%s\n' apple pear plum quince > fruits.txt

echo "== The registrar makes a key. Its public half goes to all clients."
fedtally keys new registrar --output registrar.key

echo "== Each client makes an agent, and proves to the registrar that it has its key."
mkdir -m 750 sockets
for i in "${!people[@]}"; do
  name=${people[i]}
  fedtally agent init "clients/$name"
  echo "${fruits[i]}" > "clients/$name/items/items.txt"
  # What only the owner knows: where the items are, and what they may cost together.
  sed -i "clients/$name/agent.toml" \
    -e 's|^# > registrar = .*|registrar = "../../registrar.key.pub"|' \
    -e 's|^# > file = .*|file = "items/items.txt"|' \
    -e 's|^candidates = .*|candidates = ["../../fruits.txt"]|' \
    -e 's|^# > epsilon = .*|epsilon = 8.0|' \
    -e 's|^# > delta = .*|delta = 1e-3|' \
    -e "s|^socket = .*|socket = \"../../sockets/$name.sock\"|"
  fedtally keys prove "clients/$name/key/agent.key" --registrar registrar.key.pub \
    --purpose "fruit 2026" --output "proofs/$name.proof"
done

echo "== The registrar lists them. The operator makes a key and a plan. The registrar signs it."
fedtally keys allow-list --registrar registrar.key.pub --purpose "fruit 2026" proofs/*.proof \
  --output clients.allow
fedtally keys new server --output server.key
fedtally plan --clients 10 --domain fruits.txt --epsilon 4 --delta 1e-3 --max-bytes 4kB \
  --secure-sum secagg --adversary active --max-dropout 0.2 --max-corrupt 0.1 \
  --cohort 10 --cohort-min 10 --allow-list clients.allow --server-key server.key.pub \
  --output plan.toml
fedtally keys sign registrar.key plan.toml --allow-list clients.allow --purpose "fruit 2026" \
  --yes --output plan.sig

echo "== Each owner looks at the plan and accepts it. The agents start."
for name in "${people[@]}"; do
  fedtally agent accept plan.toml --allow-list clients.allow --signature plan.sig \
    --agent "clients/$name" --yes
  fedtally agent run --agent "clients/$name" 2> "clients/$name/log" &
  agents+=($!)
done

echo "== The operator grants a budget, and runs the campaign. The server is killed, and goes on."
fedtally ledger grant --ledger ledger.db --population clients --epsilon 4 --delta 1e-3
fedtally campaign init fruit --plan plan.toml --server-key server.key --allow-list clients.allow \
  --candidates fruits.txt --ledger ledger.db --mark fruit.mark
fedtally campaign run fruit --agents sockets 2> run.log &
server=$!
until grep -qs "for their items" run.log; do sleep 0.05; done
{ kill -9 "$server"; wait "$server"; } 2> /dev/null || true  # bash would say "Killed"
fedtally campaign resume fruit --agents sockets
fedtally campaign status fruit
fedtally agent show --agent clients/ada
