# peers.awk: the measurements of peers.sh as Markdown. A line:
#   round transport ranks exchange-before exchange-after peer collective bytes mode microseconds operations
# A group whose two exchanges tell different states is left out. Medians are over the rounds of one state.

function state_of(ns) { return ns < 140 ? "near" : "apart" }

# Sorted insertion into list[key, 1…count[key]].
function insert(key, value,    i) {
  for (i = ++count[key]; i > 1 && list[key, i - 1] > value; i--) list[key, i] = list[key, i - 1]
  list[key, i] = value
}
function median(key,    n) {
  n = count[key]
  if (n == 0) return 0
  return n % 2 ? list[key, (n + 1) / 2] : (list[key, n / 2] + list[key, n / 2 + 1]) / 2
}
function smaller(a, b) { return a == 0 ? b : b == 0 ? a : a < b ? a : b }
function number(us) { return us == 0 ? "–" : us < 10 ? sprintf("%.2f", us) : us < 1000 ? sprintf("%.1f", us) : sprintf("%.0f", us) }
function size_name(bytes) {
  return bytes >= 1048576 ? bytes / 1048576 " MiB" : bytes >= 1024 ? bytes / 1024 " KiB" : bytes " B"
}

{
  state = state_of($4)
  group = $1 SUBSEP $2 SUBSEP $3
  if (state != state_of($5)) { if (!(group in mixed)) { mixed[group] = 1; mixed_count++ }; next }
  if (!(group in seen)) { seen[group] = 1; groups[state]++; insert("exchange" SUBSEP state, $4); insert("exchange" SUBSEP state, $5) }
  point = state SUBSEP $2 SUBSEP $3 SUBSEP $7 SUBSEP $8 SUBSEP $9
  insert(point SUBSEP $6, $10)
  if ($6 ~ /^bare/) next
  if (!(point in known)) { known[point] = 1; points[++point_count] = point }
}

END {
  printf "The exchange of a cache line between two cores tells the machine's state: under 140 ns the cores are *near* "
  printf "(they share a cache), "
  printf "else *apart*. Groups measured: %d near, %d apart; left out because the state changed: %d.\n\n", groups["near"], groups["apart"], mixed_count
  print "Ratio: time of the better MPI / time of ringzero; above 1 ringzero is faster. Geometric mean over sizes, in and out of place.\n"
  print "| cores | transport | ranks | collective | points | geometric mean | not slower | worst |"
  print "|---|---|---|---|---|---|---|---|"
  for (i = 1; i <= point_count; i++) {
    split(points[i], f, SUBSEP)
    ours = median(points[i] SUBSEP "ringzero")
    theirs = smaller(median(points[i] SUBSEP "openmpi"), median(points[i] SUBSEP "mpich"))
    if (ours == 0 || theirs == 0) continue
    row = f[1] " | " f[2] " | " f[3] " | " f[4]
    ratio = theirs / ours
    if (!(row in n)) { rows[++row_count] = row; worst[row] = ratio; where[row] = points[i] }
    n[row]++
    logs[row] += log(ratio)
    good[row] += ratio >= 1
    all_good += ratio >= 1
    all++
    if (ratio < worst[row]) { worst[row] = ratio; where[row] = points[i] }
  }
  for (i = 1; i <= row_count; i++) {
    row = rows[i]
    split(where[row], f, SUBSEP)
    printf "| %s | %d | %.2f | %.0f %% | %.2f at %s %s |\n", row, n[row], exp(logs[row] / n[row]), 100 * good[row] / n[row], worst[row],
      size_name(f[5]), f[6]
  }
  if (all > 0) printf "\nNot slower at %d of %d points: %.0f %%.\n", all_good, all, 100 * all_good / all

  bare_lines = 0
  for (i = 1; i <= point_count; i++) {
    split(points[i], f, SUBSEP)
    if (f[2] != "shm" || f[3] != 2 || f[4] != "all_reduce" || f[6] != "in") continue
    ours = median(points[i] SUBSEP "ringzero")
    edge = f[5] == 8 ? median("exchange" SUBSEP f[1]) / 1000 : smaller(median(points[i] SUBSEP "bare-plain"), median(points[i] SUBSEP "bare-streaming"))
    if (ours == 0 || edge == 0) continue
    if (!bare_lines++) {
      print "\n## Beside a bare edge\n\nall_reduce of 2 ranks over shared memory, in place, beside `bare_edge`: at 8 bytes the exchange of a line, else two FIFO edges that check nothing.\n"
      print "| cores | size | ringzero µs | bare µs | bare / ringzero |\n|---|---|---|---|---|"
    }
    printf "| %s | %s | %s | %s | %.0f %% |\n", f[1], size_name(f[5]), number(ours), (edge < 10 ? sprintf("%.3f", edge) : number(edge)), 100 * edge / ours
  }

  allowed_rows = 0
  for (i = 1; i <= point_count; i++) {
    split(points[i], f, SUBSEP)
    ours = median(points[i] SUBSEP "ringzero"); bare = median(points[i] SUBSEP "bare-copy")
    theirs = smaller(median(points[i] SUBSEP "openmpi"), median(points[i] SUBSEP "mpich"))
    if (ours == 0 || theirs == 0 || bare == 0) continue
    row = f[1] " | " f[4]
    if (!(row in allowed_n)) allowed[++allowed_rows] = row
    allowed_n[row]++
    allowed_logs[row] += log(theirs / bare)
    reached_logs[row] += log(bare / ours)
  }
  if (allowed_rows > 0) {
    print "\n## What two cores allow\n\nOf 2 ranks over shared memory, beside `bare_copy`: the same bytes, copied in the quickest way there is, without a check.\n"
    print "| cores | collective | points | MPI / bare: the most that could be | bare / ringzero |\n|---|---|---|---|---|"
    for (i = 1; i <= allowed_rows; i++) {
      row = allowed[i]
      printf "| %s | %d | %.2f | %.0f %% |\n", row, allowed_n[row], exp(allowed_logs[row] / allowed_n[row]), 100 * exp(reached_logs[row] / allowed_n[row])
    }
  }

  print "\n## Every point\n\nMedian microseconds.\n"
  print "| cores | transport | ranks | collective | size | place | ringzero | Open MPI | MPICH | ratio | bare |"
  print "|---|---|---|---|---|---|---|---|---|---|---|"
  for (i = 1; i <= point_count; i++) {
    split(points[i], f, SUBSEP)
    ours = median(points[i] SUBSEP "ringzero"); open = median(points[i] SUBSEP "openmpi"); mpich = median(points[i] SUBSEP "mpich")
    best = smaller(open, mpich)
    ratio = (ours == 0 || best == 0) ? "–" : sprintf("%.2f", best / ours)
    bare = smaller(median(points[i] SUBSEP "bare-copy"), smaller(median(points[i] SUBSEP "bare-plain"), median(points[i] SUBSEP "bare-streaming")))
    printf "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", f[1], f[2], f[3], f[4], size_name(f[5]), f[6], number(ours),
      number(open), number(mpich), ratio, number(bare)
  }
}
