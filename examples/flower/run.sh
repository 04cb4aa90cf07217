#!/usr/bin/env bash
# A campaign on a Flower federation, on this machine alone: bash examples/flower/run.sh [CLIENTS]
#
# A SuperLink with TLS, and for each client a SuperNode with a registered key and an agent. The
# server may lie (active), and the clients add the noise (distributed). The ServerApp is killed once
# and resumed, and a fifth of the nodes is killed in mid-round. docs/flower.md explains each step,
# and federation.sh has the commands that start the parts.
source "$(dirname "$0")/federation.sh"
clients=${1:-10}
killed=$((clients / 5)) # a fifth of the clients may drop out
phase=${PHASE_SECONDS:-120}

step "1. Certificates, and the SuperLink"
start_superlink

step "2. Keys of the server, the registrar and the clients"
enrol "$clients" "flower example"

step "3. The plan, signed by the registrar"
# Ten clients hide little: this epsilon is for the show.
fedtally plan --clients "$clients" --domain-size 20 --epsilon 24 --max-bytes 4kB --rows 5 \
  --secure-sum secagg --adversary active --trust distributed --max-dropout 0.2 --max-corrupt 0.1 \
  --allow-list clients.allow --server-key server.key.pub --quiet --output plan.toml >/dev/null
fedtally keys sign registrar.key plan.toml --allow-list clients.allow --purpose "flower example" \
  --yes --output plan.sig

step "4. The agents: each owner fills in agent.toml, and accepts the plan"
for i in $(seq "$clients"); do
  echo $((i % 3 + 1)) >"agent$i/items/items.txt"
  sed -i -e 's|^# > registrar = .*|registrar = "../registrar.key.pub"|' \
    -e 's|^# > file = .*|file = "items/items.txt"|' -e '/^# > /d' \
    -e 's|^#   .*||' -e 's|^\[policy\]|[policy]\nepsilon = 24.0\ndelta = 1e-5|' \
    -e 's|^min_honest = .*|min_honest = 3|' "agent$i/agent.toml"
  start_agent "$i"
done

step "5. The SuperNodes: each has a key that the operator registers"
start_nodes "$clients"

step "6. The campaign"
fedtally ledger grant --ledger ledger.db --population clients --epsilon 24 --delta 1e-5
fedtally campaign init survey --plan plan.toml --server-key server.key --allow-list clients.allow \
  --ledger ledger.db --mark survey.mark --phase "$phase"
start campaign fedtally campaign run survey --engine flower --connection "$connection"
wait_for campaign "for their shares"
kill -KILL "$(fedtally campaign status survey --json | field 'd["process"]')"
wait "${pids[campaign]}" || cat campaign.log
echo "the ServerApp was killed in mid-round"

step "7. It is resumed, and $killed nodes are killed in mid-round"
start resumed fedtally campaign resume survey --engine flower --connection "$connection"
wait_for resumed "for their items"
for i in $(seq "$killed"); do
  stop "node$i" KILL
  { wait "${pids[node$i]}" || true; } 2>/dev/null
done
wait "${pids[resumed]}" || ended=$?
cat resumed.log
landed=$(fedtally campaign status survey --json | field 'sum(one["landed"] for one in d["rounds"])')
echo "$landed of $clients clients are in the sum"
[[ ${ended:-0} == 0 ]] && ((landed >= clients - killed))
