# try.sh: sourced by the jobs that run in a guest, by busybox' shell.
failed=0
# try NAME SECONDS COMMAND…: must exit with 0 in time; what it prints is in /tmp/out.
try() {
  name=$1 seconds=$2 code=0 begin=$(cut -d. -f1 /proc/uptime)
  shift 2
  timeout "$seconds" "$@" >/tmp/out 2>&1 || code=$?
  report "$code"
}
# report CODE: of `name`, begun at `begin`.
report() {
  if [ "$1" = 0 ]; then
    echo "ok      $name, $(($(cut -d. -f1 /proc/uptime) - begin)) s"
  else
    echo "FAILED  $name: exit code $1"
    tail -25 /tmp/out | sed 's/^/        /'
    failed=1
  fi
}
# shows PATTERN…: each is in the last command's output.
shows() {
  for pattern in "$@"; do
    grep -qE -- "$pattern" /tmp/out && continue
    echo "FAILED  $name: \"$pattern\" is not in"
    tail -25 /tmp/out | sed 's/^/        /'
    failed=1
  done
}
