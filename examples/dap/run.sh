#!/usr/bin/env bash
# A histogram by DAP on one machine: two operators, each with a server behind nginx, a collector, and
# three clients without an identity. The helper is killed in the middle, and goes on.
# docs/dap.md explains each step. It needs nginx and openssl.
#
#   examples/dap/run.sh [FOLDER]       FOLDER keeps the files; by default they are deleted
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
mkdir -p "$folder"/{leader,helper} && cd "$folder"
folder=$PWD
port=$((20000 + RANDOM % 10000))
declare -A ports=([leader]=$port [helper]=$((port + 1)))
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
printf '%s\n' apple pear plum quince > fruits.txt

echo "== The collector and each operator make a key, and each operator a certificate for clients."
fedtally keys new collector --output collector.key > /dev/null 2>&1
for side in leader helper; do
  fedtally keys new aggregator --output "$side/$side.key" > /dev/null 2>&1
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
    -subj /CN=localhost -addext subjectAltName=DNS:localhost \
    -keyout "$side/public.key" -out "$side/public.crt" 2>/dev/null
done
cat leader/public.crt helper/public.crt > ca.pem

echo "== The leader's operator makes the task, and hands its secrets over."
fedtally dap task fruit --vdaf histogram --candidates fruits.txt --min-batch 3 \
  --collector collector.key.pub \
  --leader "https://localhost:${ports[leader]}/" --helper "https://localhost:${ports[helper]}/"

echo "== Each operator makes a server, and runs it behind nginx."
serve() {  # SIDE: run a server, as its service would
  fedtally dap "$1" run "$1/fruit" --listen "unix:$1/fruit.sock" 2>> "$1/run.log" &
  running[$1]=$!
}
[[ $(id -u) != 0 ]] || user="user root;"  # else its worker may not enter this folder
given=(--task fruit/task.toml --secret fruit/servers.secret --min-batch 3)
fedtally dap helper init helper/fruit "${given[@]}" --key helper/helper.key --mark helper/mark \
  2> /dev/null
fedtally dap leader init leader/fruit "${given[@]}" --key leader/leader.key --mark leader/mark \
  --ca ca.pem 2> /dev/null
for side in leader helper; do
  serve "$side"
  fedtally dap "$side" nginx "$side/fruit" --socket "$folder/$side/fruit.sock" \
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
for side in leader helper; do until_it grep -q "serves on" "$side/run.log"; done

echo "== Three clients report. The helper is killed after the first, and goes on."
clients=(apple apple pear)
serves_again() { [[ $(grep -c "serves on" helper/run.log) == 2 ]]; }
for i in "${!clients[@]}"; do
  fedtally dap report fruit/task.toml "${clients[i]}" --candidates fruits.txt --ca ca.pem
  if ((i == 0)); then
    kill -9 "${running[helper]}"
    wait "${running[helper]}" 2>/dev/null || true
    serve helper
    until_it serves_again
  fi
done

echo "== The collector gets the sums of these hours, and asks them for shares."
hour() { date -u -d "@$(($(date +%s) / 3600 * 3600 + $1))" +%FT%TZ; }
fedtally dap collect fruit/task.toml --key collector.key --token fruit/collector.token \
  --from "$(hour -3600)" --to "$(hour 3600)" --candidates fruits.txt --ca ca.pem -o fruit.fed
fedtally query fruit.fed apple pear

echo "== Each operator ends the server, and destroys the key."
for side in leader helper; do
  kill "${running[$side]}"
  wait "${running[$side]}"
  unset "running[$side]"
  fedtally keys retire "$side/$side.key" > /dev/null
done
