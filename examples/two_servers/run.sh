#!/usr/bin/env bash
# A sum of two servers on one machine: two operators, each with a server behind nginx, and four
# owners of whom three report. Both servers are killed in the middle, and go on.
# docs/two-servers.md explains each step. It needs nginx and openssl.
#
#   examples/two_servers/run.sh [FOLDER]       FOLDER keeps the files; by default they are deleted
set -euo pipefail
umask 077
PATH=$PATH:/usr/sbin  # where nginx is
for program in fedtally nginx openssl; do
  command -v "$program" > /dev/null || { echo "install $program first" >&2; exit 1; }
done

folder=${1:-$(mktemp -d)}
if [[ -n $(ls -A "$folder" 2>/dev/null) ]]; then
  echo "$folder has files: name an empty folder" >&2; exit 1
fi
mkdir -p "$folder"/{leader,helper,clients,proofs} && cd "$folder"
folder=$PWD
port=$((20000 + RANDOM % 10000))
declare -A ports=([leader]=$port [helper]=$((port + 1)))
channel=$((port + 2))  # of the servers alone
declare -A running=()
end() {  # no process outlives the script
  ((${#running[@]} == 0)) || kill "${running[@]}" 2>/dev/null || true
  wait
  [[ -n ${1:-} ]] || rm -rf "$folder"
}
trap 'end "${1:-}"' EXIT
until_it() {  # COMMAND: wait until it succeeds
  for _ in $(seq 600); do "$@" > /dev/null 2>&1 && return; sleep 0.05; done
  echo "waited in vain: $*" >&2; tail -n 5 -- */*.log >&2; exit 1
}
people=(ada ben cleo dan)
fruits=(apple apple pear)  # the fourth stays away
printf '%s\n' apple pear plum quince > fruits.txt

echo "== Each owner makes an agent, and proves to the registrar that it has its key."
fedtally keys new registrar --output registrar.key > /dev/null 2>&1
enrol() {  # NAME
  fedtally agent init "clients/$1" > /dev/null 2>&1
  fedtally keys prove "clients/$1/key/agent.key" --registrar registrar.key.pub \
    --purpose "fruit 2026" --output "proofs/$1.proof" > /dev/null 2>&1
}
enrolling=()
for name in "${people[@]}"; do enrol "$name" & enrolling+=($!); done
wait "${enrolling[@]}"

echo "== Each operator makes a key. The registrar lists the clients, and makes and signs the plan."
for side in leader helper; do
  fedtally keys new "$side" --output "$side/$side.key" > /dev/null 2>&1
done
fedtally keys allow-list --registrar registrar.key.pub proofs/*.proof --purpose "fruit 2026" \
  --output clients.allow > /dev/null 2>&1
fedtally plan --clients 4 --max-dropout 0.25 --domain fruits.txt --tau 0.2 --secure-sum two-server \
  --leader-key leader/leader.key.pub --helper-key helper/helper.key.pub \
  --allow-list clients.allow --output plan.toml > /dev/null 2>&1
fedtally keys sign registrar.key plan.toml --purpose "fruit 2026" --output plan.sig 2>/dev/null

echo "== Each operator makes a server, with two certificates: for the other server, and for clients."
for side in leader helper; do
  for use in channel public; do
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
      -subj /CN=localhost -addext subjectAltName=DNS:localhost \
      -keyout "$side/$use.key" -out "$side/$use.crt" 2>/dev/null
  done
done
given=(--plan plan.toml --allow-list clients.allow)
fedtally aggregate helper init helper/fruit "${given[@]}" --key helper/helper.key \
  --mark helper/mark --certificate helper/channel.crt --certificate-key helper/channel.key \
  --other-certificate leader/channel.crt > /dev/null 2>&1
fedtally aggregate leader init leader/fruit "${given[@]}" --key leader/leader.key \
  --mark leader/mark --certificate leader/channel.crt --certificate-key leader/channel.key \
  --other-certificate helper/channel.crt --helper "https://127.0.0.1:$channel" \
  --candidates fruits.txt --grace 1 > /dev/null 2>&1

serve() {  # SIDE: run a server, as its service would
  local peer=()
  [[ $1 == leader ]] || peer=(--leader-listen "127.0.0.1:$channel")
  fedtally aggregate "$1" run "$1/fruit" --listen "unix:$1/fruit.sock" "${peer[@]}" \
    2>> "$1/run.log" &
  running[$1]=$!
}
[[ $(id -u) != 0 ]] || user="user root;"  # else its worker may not enter this folder
for side in leader helper; do
  serve "$side"
  fedtally aggregate "$side" nginx "$side/fruit" --socket "$folder/$side/fruit.sock" \
    --host localhost --address "127.0.0.1:${ports[$side]}" \
    --certificate "$folder/$side/public.crt" --certificate-key "$folder/$side/public.key" \
    --errors "$folder/$side/errors.log" --output "$side/fruit.conf"
  cat > "$side/nginx.conf" <<END
${user:-} daemon off; pid $folder/$side/nginx.pid; error_log $folder/$side/main.log;
events {}
http {
  client_body_temp_path $folder/$side/b; proxy_temp_path $folder/$side/p;
  fastcgi_temp_path $folder/$side/f; uwsgi_temp_path $folder/$side/u;
  scgi_temp_path $folder/$side/s; include $folder/$side/fruit.conf;
}
END
  nginx -c "$folder/$side/nginx.conf" -e "$folder/$side/main.log" &
  running[nginx-$side]=$!
done
for side in leader helper; do until_it grep -q "takes reports" "$side/run.log"; done

echo "== Each owner accepts the plan, and reports. Both servers are killed in the middle, and go on."
cat leader/public.crt helper/public.crt > ca.pem
where=(--leader "https://localhost:${ports[leader]}" --helper "https://localhost:${ports[helper]}"
  --ca ca.pem)
for i in "${!fruits[@]}"; do
  name=${people[i]}
  echo "${fruits[i]}" > "clients/$name/items/items.txt"
  cat > "clients/$name/agent.toml" <<END
registrar = "../../registrar.key.pub"
[items]
file = "items/items.txt"
candidates = ["../../fruits.txt"]
once = "2026-11"           # a label of these items, which an agent without an epsilon needs
[policy]
epsilon = "none"
min_honest = 2
END
  fedtally agent accept plan.toml --allow-list clients.allow --signature plan.sig \
    --agent "clients/$name" --yes > /dev/null 2>&1
  if ((i == 1)); then
    for side in leader helper; do
      kill -9 "${running[$side]}"
      wait "${running[$side]}" 2>/dev/null || true
    done
    fedtally agent report "${where[@]}" --agent "clients/$name" --once 2> "clients/$name/log" \
      && exit 1  # nobody is there, and nothing was spent
    for side in leader helper; do serve "$side"; done
  fi
  fedtally agent report "${where[@]}" --agent "clients/$name" 2>> "clients/$name/log"
done
tail -qn 1 clients/*/log | sort | uniq -c

echo "== The leader's operator closes the release, and gets the sum."
fedtally aggregate leader close leader/fruit
until_it test -s leader/fruit/result.fed
fedtally aggregate leader result leader/fruit

echo "== Each operator ends the server, and destroys the key."
has_landed() { fedtally aggregate helper status helper/fruit | grep -q landed; }
until_it has_landed
for side in leader helper; do
  kill "${running[$side]}"
  wait "${running[$side]}" || true
  unset "running[$side]"
  fedtally aggregate "$side" retire "$side/fruit"
done
