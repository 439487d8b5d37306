#!/bin/bash
# `ringzero tokenize`: a text there and back, shards, threads; training on the shards; errors are one line. Where GPT-2's own vocabulary
# can be had, the King James Bible has the tokens that tiktoken gives it.
# ctest: timeout=120
set -u
. "$(dirname "$0")/harness/program.sh"

printf '#version: 0.2\nt h\nĠ th\nĠth e\na n\nan d\nĠ and\nĠ w\nĠ s\ne r\n' >"$work/vocab.bpe"
head -c 1000000 /dev/urandom | base64 -w 60 | tr 'A/+' '   ' >"$work/text" # words of all lengths, lines
printf 'the and her the\n' >"$work/small"

run tokenize "$work/small" --tokenizer "$work/vocab.bpe" -o "$work/small"
grep -q 'are 9 tokens' "$work/out" || fail "the small text: $(cat "$work/out")" # end, th, e, ␣and, ␣, h, er, ␣the, line
[ "$(od -An -tu2 -j1024 "$work/small_000000.bin" | tr -s ' \n' ' ')" = " 265 256 68 261 220 71 264 258 198 " ] ||
    fail "tokens are $(od -An -tu2 -j1024 "$work/small_000000.bin")"

run tokenize "$work/text" "$work/small" --tokenizer "$work/vocab.bpe" -o "$work/one" --threads 1 --json "$work/json"
parses "$work/json"
run tokenize "$work/text" "$work/small" --tokenizer "$work/vocab.bpe" -o "$work/many" --threads 3 --per-shard 150000
[ ! -e "$work/one_000001.bin" ] && [ -e "$work/many_000001.bin" ] || fail "one shard and several: $(ls "$work")"
for file in "$work"/many_*.bin; do tail -c +1025 "$file"; done | cmp -s - <(tail -c +1025 "$work/one_000000.bin") ||
    fail "3 threads and small shards have other tokens than one thread and one shard"
ls "$work" | grep -q part && fail "something is left: $(ls "$work")"
run tokenize --decode "$work"/many_*.bin --tokenizer "$work/vocab.bpe"
sed 's/<|endoftext|>//g' "$work/out" | cmp -s - <(cat "$work/text" "$work/small") || fail "decoded it is another text"
run train --data "$work/many_*.bin" --layers 1 --heads 2 --channels 16 --vocab 300 --seq 32 --batch 2 --steps 2 --ranks 1

refused "$work/one_000000.bin is there already" tokenize "$work/small" --tokenizer "$work/vocab.bpe" -o "$work/one"
refused "no --tokenizer given" tokenize "$work/small" -o "$work/other"
refused "no file given" tokenize --tokenizer "$work/vocab.bpe" -o "$work/other"
refused "no -o given" tokenize "$work/small" --tokenizer "$work/vocab.bpe"
refused "--threads is \"0\"" tokenize "$work/small" --tokenizer "$work/vocab.bpe" -o "$work/other" --threads 0
"$ringzero" tokenize "$work/none" --tokenizer "$work/vocab.bpe" -o "$work/other" 2>"$work/err"
[ $? -eq 1 ] && grep -q "$work/none: cannot be read: No such file or directory; expected a file of text" "$work/err" || fail "a text that is not there: $(cat "$work/err")"
"$ringzero" tokenize "$work/small" --tokenizer "$work/text" -o "$work/other" 2>"$work/err"
[ $? -eq 1 ] && grep -q "$work/text line 1: " "$work/err" || fail "a text as vocabulary: $(cat "$work/err")"
(ulimit -f 1000; "$ringzero" tokenize "$work/text" --tokenizer "$work/vocab.bpe" -o "$work/full" 2>"$work/err")
[ $? -eq 1 ] && grep -q "$work/full_000000.bin.part: cannot be written" "$work/err" || fail "no room: $(cat "$work/err")"
ls "$work" | grep -q full && fail "a shard is left that is not whole: $(ls "$work")"

# GPT-2's vocabulary comes with a package of PyPI; the text with one of Debian's.
if command -v bible >/dev/null && python3 -c 'import pip' 2>/dev/null; then
    (cd "$work" && timeout 60 python3 -m pip download -q --no-deps --no-binary :all: openai-whisper==20250625 >/dev/null 2>&1 &&
        tar xzf openai*whisper*.tar.gz --strip-components 3 --wildcards '*/gpt2.tiktoken')
fi
if [ -e "$work/gpt2.tiktoken" ]; then
    bible -f 'gen1:1-rev22:21' | sed -E 's/^[^ ]+ //' >"$work/bible"
    run tokenize "$work/bible" --tokenizer "$work/gpt2.tiktoken" -o "$work/bible" --no-separator
    sum=$(tail -c +1025 "$work/bible_000000.bin" | gzip -1 | tail -c 8 | od -An -tx4 | tr -d ' ')
    [ "$sum" = 70a540ae001f4440 ] || fail "the Bible's tokens have crc32 and bytes $sum"
    cat "$work/out"
else
    echo "GPT-2's vocabulary or the Bible's text is not here: tried with a small one alone"
fi
exit $failed
