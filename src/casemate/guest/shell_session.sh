if [[ ${__casemate_code+set} ]]; then \builtin eval "$__casemate_code"; \builtin return; fi
# The interpreter of a Shell session, sourced by the cell's program: one bash that runs step after step and keeps its
# state. docs/internals/session-protocol.md describes its frames. Requests are lines on descriptor 6:
#
#     run <step> <bytes of code> <bytes of cwd, or -> <bytes of stdin, or -> <out> <err>\n<code><cwd><stdin>
#     variables <id>\n        get <id> <name>\n        set <id> <name> <bytes of value>\n<value>
#
# The program's first line, sourced again, evaluates a step's code. So errors name the program and a line of the step,
# `return` ends the step, and no variable of the step becomes local. The program is therefore best
#
#     \builtin eval "${__casemate_code-. /opt/casemate/shell_session.sh}"
#
# Descriptors: 20 control, 21 requests, 24 drives the loop (all closed while a step runs), 22 and 23 unlinked files.
# Outside steps the user's `set` flags are off; `__casemate_flags` remembers them.

# --- Frames ---

__casemate_send() {  # the JSON of a frame
    builtin local LC_ALL=C __casemate_size
    # Bash flushes after each newline, so a length without that byte makes the frame one write.
    if ((${#1} % 256 == 10)); then builtin set -- "$1 "; fi
    builtin printf -v __casemate_size '\\x%02x\\x%02x\\x%02x\\x%02x' \
        "$((${#1} >> 24 & 255))" "$((${#1} >> 16 & 255))" "$((${#1} >> 8 & 255))" "$((${#1} & 255))"
    builtin printf "$__casemate_size%s" "$1" >&20 || builtin exit 70
}

__casemate_quote() {  # bytes -> __casemate_quoted, a JSON string; if not UTF-8, each high byte becomes \u00XX
    builtin local LC_ALL=C __casemate_rest __casemate_byte __casemate_code_point
    __casemate_quoted=$1
    if [[ $1 == *[!\ -~]* || $1 == *[\"\\]* ]]; then
        __casemate_quoted=${__casemate_quoted//\\/\\\\}
        __casemate_quoted=${__casemate_quoted//\"/\\\"}
        __casemate_quoted=${__casemate_quoted//$'\n'/\\n}
        __casemate_quoted=${__casemate_quoted//$'\t'/\\t}
        __casemate_rest=${__casemate_quoted//[ -~]/}
        if [[ $__casemate_rest == *[$'\x80'-$'\xff']* ]] && __casemate_is_utf8 "$1"; then
            __casemate_rest=${__casemate_rest//[$'\x80'-$'\xff']/}
        fi
        while [[ $__casemate_rest ]]; do
            __casemate_byte=${__casemate_rest:0:1}
            builtin printf -v __casemate_code_point '\\u%04x' "'$__casemate_byte"
            __casemate_code_point=${__casemate_code_point/ffffffffffffff/00}
            __casemate_quoted=${__casemate_quoted//"$__casemate_byte"/"$__casemate_code_point"}
            __casemate_rest=${__casemate_rest//"$__casemate_byte"/}
        done
    fi
    __casemate_quoted=\"$__casemate_quoted\"
}

__casemate_is_utf8() {
    builtin local __casemate_shape __casemate_text __casemate_more
    __casemate_text=$1
    __casemate_more=[$'\x80'-$'\xbf']
    for __casemate_shape in \
        $'\xe0'[$'\xa0'-$'\xbf']"$__casemate_more" \
        [$'\xe1'-$'\xec'$'\xee'$'\xef']"$__casemate_more$__casemate_more" \
        $'\xed'[$'\x80'-$'\x9f']"$__casemate_more" \
        $'\xf0'[$'\x90'-$'\xbf']"$__casemate_more$__casemate_more" \
        [$'\xf1'-$'\xf3']"$__casemate_more$__casemate_more$__casemate_more" \
        $'\xf4'[$'\x80'-$'\x8f']"$__casemate_more$__casemate_more" \
        [$'\xc2'-$'\xdf']"$__casemate_more"; do
        __casemate_text=${__casemate_text//$__casemate_shape/x}
    done
    [[ $__casemate_text != *[$'\x80'-$'\xff']* ]]
}

__casemate_quote_all() {  # strings -> __casemate_quoted, a JSON array
    builtin local __casemate_all= __casemate_one
    for __casemate_one; do
        __casemate_quote "$__casemate_one"
        __casemate_all+=,$__casemate_quoted
    done
    __casemate_quoted=[${__casemate_all#,}]
}

__casemate_reply() {  # id, JSON of the rest
    __casemate_send "{\"type\":\"reply\",\"id\":$1,$2}"
}

__casemate_refuse() {  # id, why
    __casemate_quote "$2"
    __casemate_reply "$1" "\"error\":$__casemate_quoted"
}

# --- Requests ---

__casemate_read() {  # bytes, variable
    builtin local LC_ALL=C TMOUT=0
    if (($1 == 0)); then
        builtin printf -v "$2" ''
    else
        builtin read -r -N "$1" -u 21 "$2" || __casemate_no_request
    fi
}

__casemate_read_line() {  # -> __casemate_words; does not depend on the user's IFS or on `read`'s variables
    builtin mapfile -t -n 1 -u 21 __casemate_words
    builtin local "__casemate_rest=${__casemate_words[0]-}"
    [[ $__casemate_rest ]] || __casemate_no_request
    __casemate_words=()
    while [[ $__casemate_rest == *' '* ]]; do
        __casemate_words+=("${__casemate_rest%% *}")
        __casemate_rest=${__casemate_rest#* }
    done
    __casemate_words+=("$__casemate_rest")
}

__casemate_no_request() {
    { : <&21 >&20; } 2>/dev/null || builtin exit 70
    builtin exit 0
}

__casemate_next() {  # answers requests until one asks for a step
    while :; do
        __casemate_read_line
        case ${__casemate_words[0]-} in
            run) __casemate_begin "${__casemate_words[@]:1}" && return ;;
            variables) __casemate_variables "${__casemate_words[1]}" ;;
            get) __casemate_get "${__casemate_words[@]:1}" ;;
            set) __casemate_set "${__casemate_words[@]:1}" ;;
            *) builtin exit 70 ;;
        esac
    done
}

# --- Steps ---

__casemate_begin() {  # the words of a `run`; fails if there is nothing to run
    __casemate_step=$1
    __casemate_read "$2" __casemate_code
    builtin local __casemate_cwd= __casemate_input= __casemate_stdin=/dev/null
    [[ $3 == - ]] || __casemate_read "$3" __casemate_cwd
    if [[ $4 != - ]]; then
        __casemate_read "$4" __casemate_input
        __casemate_stdin=/proc/self/fd/23
        __casemate_unlinked 23
        builtin printf %s "$__casemate_input" >|"$__casemate_stdin"
    fi
    exec <"$__casemate_stdin" >"$__casemate_root$5" 2>"$__casemate_root$6" || builtin exit 70
    exec 23<&-
    __casemate_running=1 __casemate_interrupted=
    if [[ $3 != - ]] && ! CDPATH= builtin cd -- "$__casemate_root$__casemate_cwd" >/dev/null; then
        __casemate_ended 1
        __casemate_done
        return 1
    fi
    __casemate_wrap
}

__casemate_wrap() {  # adds to the step's code what must be inside it, with no line before it
    # Without this end a user's ERR trap would run again for the evaluation of the step. (After an unterminated
    # here-document it would become the user's text.)
    if [[ $__casemate_code == *ERR* && $__casemate_code != *'<<'* ]]; then
        __casemate_code+=$'\n\n{ __casemate_over; \\builtin return 0; } 2>/dev/null'
    fi
    if [[ $__casemate_flags == *[vx]* ]]; then
        __casemate_code="{ \\builtin set $__casemate_flags; __casemate_with_status && :; } 2>/dev/null; $__casemate_code"
        __casemate_flags=${__casemate_flags//[vx]/}
    fi
}

__casemate_over() { __casemate_ended "$?"; }

__casemate_with_status() { return "$__casemate_status"; }  # the last step's $?, for the next one

# The traps of a step. The server is at depth 2 of the sources, a step at 3.
#
# On an interrupt, bash may run the trap wherever it reaps a child, even while it parses, so the trap is only a call and
# never a `return`. A DEBUG trap then leaves each function and sourced file before its next command. -e is off, or a
# command that the interrupt killed could end the shell. RETURN traps are removed: they would be left, and run again.
__casemate_interrupt() {
    if [[ ! $__casemate_interrupted ]]; then
        __casemate_interrupted=1
        __casemate_flags=$-
        builtin trap "$__casemate_unwind" DEBUG
        builtin set +e -T
    fi
    builtin trap - RETURN
}
builtin declare -ft __casemate_interrupt  # or leaving it would restore the user's DEBUG trap
__casemate_unwind='{ \builtin trap - RETURN
    if [[ ${FUNCNAME[0]-} != __casemate_* ]] && ((${#BASH_SOURCE[@]} > 2 || BASH_SUBSHELL)); then \builtin return 130; fi
    } 2>/dev/null'
# Under `set -e` a failure ends the step, not the shell.
__casemate_on_error='{ __casemate_failed=$?
    if [[ $- == *e* ]] && ((BASH_SUBSHELL == 0)); then
        if ((${#BASH_SOURCE[@]} > 3)); then \builtin return "$__casemate_failed"; fi
        __casemate_ended "$__casemate_failed"
        if ((${#BASH_SOURCE[@]} > 2)); then \builtin return 0; fi
    fi; } 2>/dev/null'

__casemate_ended() {  # status: the user's code has ended in any way; only the first call counts
    if [[ $__casemate_running ]]; then
        builtin trap '' INT
        __casemate_put_flags_away
        __casemate_status=$1 __casemate_running=
    fi
}

__casemate_put_flags_away() {
    [[ $__casemate_interrupted ]] || __casemate_flags=$-
    builtin set +aefkmuvxCTE  # -m would keep interrupts from children, so it ends with its step
    builtin export -n __casemate_flags __casemate_failed __casemate_interrupted  # after `set -a`
    __casemate_flags=-${__casemate_flags//[!aefkuvxCTE]/}
}

__casemate_done() {
    if [[ $__casemate_interrupted ]]; then
        __casemate_status=130
        __casemate_send "{\"type\":\"error\",\"step\":$__casemate_step,\"at\":null,\"name\":\"Interrupted\",\
\"value\":\"the step was interrupted\",\"traceback\":\"\",\"errno\":null}"
    fi
    exec </dev/null >/dev/null 2>&1
    __casemate_update_names
    __casemate_send "{\"type\":\"done\",\"step\":$__casemate_step,\"at\":null,\"exit\":$__casemate_status,\
\"new\":$__casemate_new,\"gone\":$__casemate_gone}"
}

# --- Names and values ---

builtin . "${BASH_SOURCE[0]%/*}/shell_session_names.sh"

# --- An error that ends a shell: `set -u`, `${x?}`, `set -e` within a function ---

# The command that ends it, status, the positional parameters: continues in a new bash with the same state in the same
# process, unless the command is an `exit`. In a trap the command is the interrupted one, so an `exit` there is
# recognized by its status.
__casemate_on_exit() {
    [[ $__casemate_running && ! -o posix ]] && ((BASH_SUBSHELL == 0)) || return 0
    [[ $1 != *(?(\\)@(builtin|command) )?(\\)exit?( *) && ($2 == 1 || $2 == 127 || $- == *e*) ]] || return 0
    builtin shift
    { : >&20 <&21; } 2>/dev/null || return 0
    __casemate_ended "$1"
    __casemate_unlinked 23 && __casemate_state "${@:2}" >|/proc/self/fd/23 2>/dev/null || return 0
    builtin trap - INT
    __casemate_resumed=1 builtin exec "${BASH:-bash}" "$0" 3>&20 6<&21 20>&- 21<&- 22<&- 24<&-
}

__casemate_state() {
    builtin unset -v __casemate_code
    builtin declare -p
    __casemate_functions
    builtin shopt -p
    builtin shopt -po
    builtin alias -p
    builtin trap -p EXIT HUP INT QUIT USR1 USR2 PIPE ALRM TERM CHLD CONT TSTP TTIN TTOU URG WINCH IO XCPU XFSZ
    builtin printf 'builtin set --'
    (($# == 0)) || builtin printf ' %q' "$@"
    builtin printf '\n'
}

__casemate_functions() {  # the user's, with the attributes from `export -f` and the like
    builtin local __casemate_line __casemate_lines
    __casemate_capture builtin declare -F
    for __casemate_line in "${__casemate_lines[@]}"; do
        if [[ ${__casemate_line##* } != __casemate_* ]]; then
            builtin declare -f -- "${__casemate_line##* }"
            [[ $__casemate_line == 'declare -f '* ]] || builtin printf '%s\n' "$__casemate_line"
        fi
    done
}

# --- The loop ---

__casemate_start() {
    exec 20>&3 21<&6 3>&- 6<&-
    __casemate_unlinked 22 || __casemate_problem 'the cell has no room for a temporary file'
    : >|/proc/self/fd/22
    builtin shopt -s execfail
    __casemate_status=0 __casemate_flags=- __casemate_running=
    __casemate_order=() __casemate_listed=
    # On walls without mounts, cell paths are below the folder of the program's folder.
    __casemate_root=${BASH_SOURCE[-1]%/program/*}
    [[ $__casemate_root == /* && $__casemate_root != "${BASH_SOURCE[-1]}" ]] || __casemate_root=
    builtin declare -gA __casemate_known
    builtin trap '' INT
}

__casemate_problem() {
    __casemate_quote "$1"
    __casemate_send "{\"type\":\"ready\",\"problem\":$__casemate_quoted}"
    builtin exit 70
}

__casemate_ignore_names() {  # names that exist before any step are not the user's
    builtin local __casemate_lines __casemate_name
    __casemate_list_names 2>/dev/null
    __casemate_read_names 2>/dev/null
    ((${#__casemate_lines[@]})) || __casemate_problem 'the cell has no room for a temporary file, or no /proc/self/fd'
    for __casemate_name in "${__casemate_lines[@]}"; do
        __casemate_known[$__casemate_name]=0
    done
}

__casemate_start
if [[ ${__casemate_resumed-} ]]; then
    builtin . /proc/self/fd/23 2>/dev/null
    exec 23<&-
    builtin unset -v __casemate_resumed
    builtin trap '' INT
    builtin trap - ERR DEBUG RETURN
    __casemate_done
else
    __casemate_ignore_names
    builtin trap '{ __casemate_on_exit "$BASH_COMMAND" "$?" "$@"; } 2>/dev/null' EXIT
    exec </dev/null >/dev/null 2>&1
    __casemate_send '{"type":"ready"}'
fi
# Not a shell loop, which a step's `break` would end. If a step disables commands (`set -n`), descriptor 24 stays at its
# end of file, which ends the interpreter.
__casemate_turn='\__casemate_next
    \exec 24</dev/null
    \builtin trap "$__casemate_on_error" ERR
    [[ $__casemate_flags == - ]] || \builtin set "$__casemate_flags"
    \builtin trap "{ __casemate_interrupt; } 2>/dev/null" INT
    \__casemate_with_status && :
    \builtin . "${BASH_SOURCE[1]}" 20>&- 21<&- 22<&- 24<&-
    {
        \__casemate_over
        \builtin trap - DEBUG ERR RETURN
    } >/dev/null 2>&1
    \__casemate_done
    __casemate_turns=()
    \exec 24</dev/zero
    #'
exec 24</dev/zero
builtin mapfile -t -d '' -c 1 -u 24 -C "$__casemate_turn" __casemate_turns
