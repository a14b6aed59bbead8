#!/bin/sh
# Runs driver.c under the address and undefined-behaviour sanitisers, then under the one for threads.
# usage: sanitise.sh [rounds [kinds]]
set -eu
cd "$(dirname "$0")"
sources=../../../src/sepgconv/execution/native/csrc
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
case $(uname -m) in
    x86_64 | amd64) widths="base avx2 avx512" wide=-DX86 ;;
    *) widths=base wide= ;;
esac
for kind in ${2:-address,undefined thread}; do
    rm -f "$place"/*.o
    flags="-std=gnu11 -O1 -Wall -Wextra -Werror -fno-omit-frame-pointer -fno-sanitize-recover=all -fsanitize=$kind $wide"
    for file in "$sources"/*.c; do
        name=$(basename "$file" .c)
        case $name in dispatch | threads) builds=base ;; *) builds=$widths ;; esac
        jobs=
        for width in $builds; do
            case $width in
                avx2) vectors="-mavx2 -mfma" ;;
                avx512) vectors="-mavx2 -mfma -mavx512f -mavx512vl -mavx512bw -mavx512dq" ;;
                *) vectors= ;;
            esac
            ${CC:-cc} $flags $vectors -DSUFFIX="$width" -c "$file" -o "$place/$name-$width.o" &
            jobs="$jobs $!"
        done
        for job in $jobs; do wait "$job"; done # one by one: a compiler that fails ends this
    done
    ${CC:-cc} $flags -I"$sources" driver.c "$place"/*.o -o "$place/driver" -lpthread -lm
    echo "$kind"
    "$place/driver" "${1:-100}"
done
