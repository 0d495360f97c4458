# bare.sh FD [TOKEN_FD]: the action server of an image without Python.
#
# The same frames, fewer actions: bash, read, write. What the host sends is shell assignments instead of JSON (in the hello
# they are the hex of a field of their own), for the host is trusted here and bash can read nothing else. Output comes when
# a command is over, and a timeout takes the shell with it.
#
#     socket -- reader --\                        /-- OUTPUT, END -- socket
#                         events (a pipe) -- loop
#     shell --- its end -/                        \-- commands -- shell
set -f
export LC_ALL=C
socket=$1 token_fd=$2 self=$BASHPID
HELLO=1 START=2 CANCEL=3 OUTPUT=4 END=5 BYE=6 FAULT=7
MAX_PAYLOAD=1048576 CHUNK=65536 MAX_OUTPUT=16777216 MAX_READ=700000

# -- frames

read_byte() { IFS= read -r -d '' -n 1 -u "$socket" REPLY || return 1; printf -v REPLY %d "'$REPLY"; ((REPLY &= 255)); return 0; }

read_frame() { # sets length, kind, request, payload
    local header=() i
    for i in 0 1 2 3 4 5 6 7 8; do read_byte || return 1; header[i]=$REPLY; done
    ((length = header[0] << 24 | header[1] << 16 | header[2] << 8 | header[3], kind = header[4]))
    ((request = header[5] << 24 | header[6] << 16 | header[7] << 8 | header[8]))
    ((length <= MAX_PAYLOAD)) || return 1
    payload=
    ((length == 0)) || IFS= read -r -N "$length" -u "$socket" payload
}

send_header() { # length, type, request
    local header
    printf -v header '\\x%02x' $(($1 >> 24 & 255)) $(($1 >> 16 & 255)) $(($1 >> 8 & 255)) $(($1 & 255)) "$2" \
        $(($3 >> 24 & 255)) $(($3 >> 16 & 255)) $(($3 >> 8 & 255)) $(($3 & 255))
    printf "$header" >&"$socket"
}

send() { send_header ${#3} "$1" "$2"; printf %s "$3" >&"$socket"; } # type, request, payload

quote() { # a JSON string of $1, control characters left out
    REPLY=${1//\\/\\\\}
    REPLY=${REPLY//\"/\\\"}
    REPLY=\"${REPLY//[[:cntrl:]]/?}\"
}

finish() { # request, outcome, data, error
    local error=null
    [[ -z $4 ]] || { quote "$4"; error=$REPLY; }
    send $END "$1" "{\"outcome\":\"$2\",\"data\":{${3}},\"error\":$error}"
}

give_up() { quote "$1"; send $FAULT 0 "{\"message\":$REPLY}"; exit 0; }

# -- processes

end_processes() { # all but the loop and the reader; in a namespace of its own that is everything
    local stat pid rest parent found=1 doomed=" $shell "
    ((self == 1)) && doomed+="1 "
    while ((found)); do
        found=0
        for pid in $(set +f; cd /proc && echo [0-9]*); do
            [[ $pid == "$self" || $pid == "$reader" || $doomed == *" $pid "* ]] && continue
            { read -r stat <"/proc/$pid/stat"; } 2>/dev/null || continue
            rest=${stat##*) }
            read -r _ parent _ <<<"$rest"
            [[ $doomed == *" $parent "* && ${rest:0:1} != Z ]] && doomed+="$pid " found=1
        done
    done
    for pid in $doomed; do ((pid > 1)) && kill -9 "$pid" 2>/dev/null; done
    [[ -z $shell ]] || wait "$shell" 2>/dev/null
    shell=
}

start_shell() {
    exec {commands}> >(
        trap - INT TERM HUP PIPE
        exec {socket}>&- 251>&"$events"
        $setsid "$BASH" --noprofile --norc /dev/fd/0 {events}>&- 2>/dev/null
        echo "gone $?" >&251
    )
    shell=$!
}

run() { # request: run $command
    [[ -n $shell ]] || start_shell
    printf %s "$command" >"$dir/command"
    : >"$dir/output"
    nonce=$RANDOM$RANDOM$RANDOM
    running=$1
    deadline=$((SECONDS + ${timeout%.*} + 1))
    # It may have died meanwhile: then its end is an event, and nobody reads this.
    printf '%s\n' "{ . $dir/command </dev/null >$dir/output 2>&1 251>&-; } 2>/dev/null" \
        "{ builtin printf 'done $nonce %s %s\n' \"\$?\" \"\${PWD//[[:cntrl:]]/?}\" >&251; } 2>/dev/null" >&"$commands" 2>/dev/null
}

send_output() {
    local size at=0 part
    size=$(wc -c <"$dir/output")
    ((size > MAX_OUTPUT)) && size=$MAX_OUTPUT
    while ((at < size)); do
        ((part = size - at < CHUNK ? size - at : CHUNK))
        send_header $part $OUTPUT "$running"
        dd if="$dir/output" bs=$CHUNK skip=$((at / CHUNK)) count=1 2>/dev/null | head -c $part >&"$socket"
        ((at += CHUNK))
    done
}

over() { # outcome, exit code, state lost, error
    send_output
    quote "$directory"
    finish "$running" "$1" "\"exit_code\":$2,\"cwd\":$REPLY,\"state_lost\":$3" "$4"
    running=
}

lose() { # outcome, exit code, error
    end_processes
    exec {commands}>&-
    over "$1" "$2" true "$3"
}

# -- actions

begin() { # request
    local action= command= timeout= path= data= is_input= limit=$MAX_READ
    eval "$(<"$dir/request-$1")"
    rm -f "$dir/request-$1"
    case $action in
        bash)
            if [[ $is_input == true ]]; then finish "$1" error '' 'this image has no Python: its shell takes no input'
            elif [[ -n $running ]]; then waiting+=("$1"); printf %s "action=bash timeout=$timeout command=${command@Q}" >"$dir/request-$1"
            else run "$1"; fi ;;
        read)
            if [[ -f $path && -r $path ]]; then
                local size; size=$(wc -c <"$path")
                ((limit > MAX_READ)) && limit=$MAX_READ
                finish "$1" ok "\"data\":\"$(head -c "$limit" "$path" | base64 | tr -d '\n')\",\"size\":$size,\"truncated\":$([[ $size -gt $limit ]] && echo true || echo false)"
            else finish "$1" error '' "No such file, or not a regular file: $path"; fi ;;
        write)
            if error=$({ mkdir -p "${path%/*}/" && printf %s "$data" | base64 -d >"$path"; } 2>&1); then
                quote "$path"; finish "$1" ok "\"path\":$REPLY,\"size\":$(wc -c <"$path")"
            else finish "$1" error '' "$error"; fi ;;
        *) finish "$1" error '' "this image has no python3 (3.8 or newer): $action does not work in it, only bash, read, write" ;;
    esac
}

cancel() { # request
    if [[ $1 == "$running" ]]; then lose cancelled null 'The shell was ended. Its state is lost.'
    else
        local each kept=()
        for each in "${waiting[@]}"; do [[ $each == "$1" ]] && finish "$1" cancelled '' '' || kept+=("$each"); done
        waiting=("${kept[@]}")
    fi
}

# -- the hello

token=
[[ -z $token_fd ]] || { IFS= read -r -u "$token_fd" token; exec {token_fd}<&-; }
read_frame && ((kind == HELLO)) || give_up 'the first frame must be a hello'
[[ $payload =~ \"bash\":\"([0-9a-f]*)\" ]] || give_up 'this image has no python3 (3.8 or newer), and the host does not speak to bash alone'
hex=${BASH_REMATCH[1]} assignments=
for ((i = 0; i < ${#hex}; i += 2)); do assignments+="\\x${hex:i:2}"; done
printf -v assignments %b "$assignments"
protocol= workdir= uid= host_token= memory_kb= file_kb= processes=
eval "$assignments"
((protocol == 1)) || give_up 'this server speaks protocol 1'
[[ ${token:0:32} == "$host_token" || -z $token ]] || give_up 'not authenticated'
[[ -z $uid ]] || give_up 'this image has no python3 (3.8 or newer), without which a server run by root cannot become the agent'
[[ -z $memory_kb ]] || ulimit -v "$memory_kb"
[[ -z $file_kb ]] || ulimit -f "$file_kb"
[[ -z $processes ]] || ulimit -u "$processes"
for program in base64 dd head mkdir rm tr wc; do
    command -v $program >/dev/null || give_up "this image has neither python3 (3.8 or newer) nor $program, which bash alone needs"
done
mkdir -p "$workdir" "${HOME:-$workdir}" && cd "$workdir" || give_up "cannot work in $workdir"
dir=${TMPDIR:-/tmp}/.prorl-$RANDOM$RANDOM
(umask 077; mkdir "$dir") || give_up "cannot make $dir"
exec {events}<> <(:)
setsid=$(command -v setsid) && setsid+=' -w'
shell= running= directory=$PWD waiting=()
quote "${token:32}"
send $HELLO 0 "{\"protocol\":1,\"python\":\"\",\"uid\":$EUID,\"server\":\"bash\",\"token\":$REPLY}"

{ # the reader
    while read_frame; do
        case $kind in
            "$START") printf %s "$payload" >"$dir/request-$request"; echo "start $request" ;;
            "$CANCEL") echo "cancel $request" ;;
            "$BYE") break ;;
        esac
    done
    echo bye
} >&"$events" {events}>&- &
reader=$!
trap 'end_processes; kill -9 "$reader" 2>/dev/null; rm -rf "$dir"' EXIT
trap '' INT TERM HUP PIPE

while :; do
    event=
    if [[ -n $running ]]; then
        ((deadline > SECONDS)) && IFS=' ' read -r -t $((deadline - SECONDS)) -u "$events" event arguments || event=${event:-timeout}
    else
        IFS=' ' read -r -u "$events" event arguments || exit 0
    fi
    case $event in
        start) begin "$arguments" ;;
        cancel) cancel "$arguments" ;;
        bye) exit 0 ;;
        timeout) lose timeout null 'The shell was ended. Its state is lost.' ;;
        done)
            IFS=' ' read -r found code where <<<"$arguments"
            if [[ -n $running && $found == "$nonce" && $code =~ ^[0-9]+$ ]]; then directory=$where; over ok "$code" false ''; fi ;;
        gone)
            if [[ -n $running && $arguments =~ ^[0-9]+$ ]]; then
                lose ok "$arguments" "The shell ended (exit code $arguments). Its state is lost."
            elif [[ -z $running ]]; then shell=; fi ;;
    esac
    if [[ -z $running && ${#waiting[@]} -gt 0 ]]; then next=${waiting[0]}; waiting=("${waiting[@]:1}"); begin "$next"; fi
done
