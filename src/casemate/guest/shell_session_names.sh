# The names that the user has bound, and their values, for shell_session.sh, which sources this file.

# --- Names ---

__casemate_unlinked() {  # opens the descriptor $1 on a new file that has no name
    builtin local __casemate_place=${TMPDIR:-/tmp}/.casemate-$BASHPID-$SRANDOM$RANDOM
    builtin eval "exec $1<>\"\$__casemate_place\"" && builtin command rm -f -- "$__casemate_place"
}

__casemate_capture() {  # the lines that a builtin prints -> __casemate_lines, without a process
    "$@" >|/proc/self/fd/22 2>/dev/null
    builtin mapfile -t __casemate_lines </proc/self/fd/22
}

__casemate_list_names() {  # -> __casemate_listing, a text; overwrites the last one, as truncating costs more
    {
        builtin compgen -v -X '__casemate_*'
        builtin compgen -A function -X '__casemate_*' -S '()'
        builtin printf '\4'
    } 1<>/proc/self/fd/22 2>/dev/null
    builtin mapfile -t -n 1 -d $'\4' __casemate_listing </proc/self/fd/22
}

__casemate_read_names() {  # the listing -> __casemate_lines
    builtin local __casemate_line
    builtin local -a __casemate_all
    builtin mapfile -t __casemate_all </proc/self/fd/22
    __casemate_lines=()
    for __casemate_line in "${__casemate_all[@]}"; do
        [[ $__casemate_line != $'\4'* ]] || break
        __casemate_lines+=("$__casemate_line")
    done
}

__casemate_is_own() {  # whether it is the shell's or ours
    case $1 in
        __casemate_* | _ | BASH | BASH_* | BASHOPTS | BASHPID | SHELLOPTS | SHLVL | PPID | UID | EUID | GROUPS | \
            FUNCNAME | LINENO | RANDOM | SRANDOM | SECONDS | EPOCHSECONDS | EPOCHREALTIME | PIPESTATUS | DIRSTACK | REPLY | \
            MAPFILE | COPROC | OPTARG | OPTIND | OPTERR | COMP_* | COMPREPLY | PWD | OLDPWD | COLUMNS | LINES | \
            HISTCMD | TMOUT | IFS | LC_ALL | PS4) return 0 ;;
    esac
    return 1
}

__casemate_update_names() {  # -> __casemate_new and __casemate_gone, JSON arrays
    builtin local LC_ALL=C __casemate_lines
    builtin local -a __casemate_added __casemate_removed __casemate_kept
    __casemate_new=[] __casemate_gone=[]
    __casemate_list_names
    [[ $__casemate_listing != "$__casemate_listed" ]] || return 0
    __casemate_listed=$__casemate_listing
    __casemate_read_names
    builtin local __casemate_name
    builtin local -A __casemate_seen
    for __casemate_name in "${__casemate_lines[@]}"; do
        __casemate_seen[$__casemate_name]=1
        if [[ ! ${__casemate_known[$__casemate_name]-} ]] && ! __casemate_is_own "$__casemate_name"; then
            __casemate_added+=("$__casemate_name")
        fi
    done
    for __casemate_name in "${__casemate_order[@]}"; do
        if [[ ${__casemate_seen[$__casemate_name]-} ]]; then
            __casemate_kept+=("$__casemate_name")
        else
            __casemate_removed+=("$__casemate_name")
            builtin unset -v '__casemate_known[$__casemate_name]'
        fi
    done
    for __casemate_name in "${__casemate_added[@]}"; do
        __casemate_known[$__casemate_name]=1
    done
    __casemate_order=("${__casemate_kept[@]}" "${__casemate_added[@]}")
    __casemate_list_for_host "${__casemate_added[@]}"
    __casemate_new=$__casemate_quoted
    __casemate_list_for_host "${__casemate_removed[@]}"
    __casemate_gone=$__casemate_quoted
}

__casemate_list_for_host() {
    builtin local __casemate_name __casemate_short
    __casemate_short=()
    for __casemate_name in "${@:1:10000}"; do
        __casemate_short+=("${__casemate_name:0:200}")
    done
    __casemate_quote_all "${__casemate_short[@]}"
}

# --- Values ---

__casemate_variables() {  # id
    builtin local __casemate_name __casemate_all=
    for __casemate_name in "${__casemate_order[@]:0:10000}"; do
        if [[ $__casemate_name == *'()' ]]; then
            __casemate_describe_function "${__casemate_name%'()'}"
        else
            __casemate_describe_variable "$__casemate_name"
        fi
        __casemate_all+=,$__casemate_described
    done
    __casemate_reply "$1" "\"value\":[${__casemate_all#,}]"
}

__casemate_describe_function() {
    builtin local LC_ALL=C "IFS="$'\n' __casemate_lines __casemate_text
    __casemate_capture builtin declare -f -- "$1"
    __casemate_text=${__casemate_lines[*]}
    __casemate_describe "$1()" function "${#__casemate_text}" "$__casemate_text"
}

__casemate_describe_variable() {
    __casemate_attributes "$1"
    case $__casemate_attributes in
        *n*) __casemate_describe "$1" reference null "" ;;
        *[aA]*) __casemate_describe_array "$1" ;;
        *) __casemate_describe_scalar "$1" ;;
    esac
}

__casemate_attributes() {  # name -> __casemate_attributes, the letters of `declare`; fails if there is no such variable
    builtin local __casemate_lines
    __casemate_capture builtin declare -p -- "$1"
    __casemate_attributes=${__casemate_lines[0]-}
    [[ $__casemate_attributes ]] || return 1
    __casemate_attributes=${__casemate_attributes#declare -}
    __casemate_attributes=${__casemate_attributes%% *}
}

__casemate_describe_scalar() {
    builtin local LC_ALL=C __casemate_kind=string "__casemate_value=${!1-}"
    case $__casemate_attributes in
        *i*) __casemate_kind=integer ;;
        *x*) __casemate_kind='exported string' ;;
    esac
    __casemate_show "$__casemate_value"
    __casemate_describe "$1" "$__casemate_kind" "${#__casemate_value}" "$__casemate_shown"
}

__casemate_describe_array() {
    builtin local LC_ALL=C __casemate_kind=array __casemate_key __casemate_size=0 __casemate_text=
    [[ $__casemate_attributes != *A* ]] || __casemate_kind='associative array'
    builtin local -n "__casemate_array=$1"
    for __casemate_key in "${!__casemate_array[@]}"; do
        __casemate_size=$((__casemate_size + ${#__casemate_array[$__casemate_key]}))
        if ((${#__casemate_text} < 200)); then
            __casemate_show "${__casemate_array[$__casemate_key]}"
            __casemate_text+=" [${__casemate_key:0:200}]=$__casemate_shown"
        fi
    done
    __casemate_describe "$1" "$__casemate_kind" "$__casemate_size" "(${__casemate_text# })"
}

__casemate_show() {  # text -> __casemate_shown, quoted for a shell
    __casemate_clip "$1"
    __casemate_shown="'${__casemate_clipped//\'/\'\\\'\'}'"
}

__casemate_clip() {  # text -> __casemate_clipped, at most 200 bytes of whole characters, with an ellipsis if it was cut
    builtin local LC_ALL=C
    __casemate_clipped=$1
    if ((${#1} > 200)); then
        __casemate_clipped=${1:0:197}
        if [[ ${1:197:1} == [$'\x80'-$'\xbf'] ]]; then
            __casemate_clipped=${__casemate_clipped%[$'\xc0'-$'\xff']*}
        fi
        __casemate_clipped+=$'\xe2\x80\xa6'
    fi
}

__casemate_describe() {  # name, type, size, repr -> __casemate_described, a JSON object
    __casemate_quote "$1"
    __casemate_described="{\"name\":$__casemate_quoted,\"type\":\"$2\",\"size\":$3"
    __casemate_clip "$4"
    __casemate_quote "$__casemate_clipped"
    __casemate_described+=",\"repr\":$__casemate_quoted}"
}

__casemate_is_name() {
    builtin local LC_ALL=C
    [[ $1 == [a-zA-Z_]* && $1 != *[!a-zA-Z0-9_]* ]]
}

__casemate_get() {  # id, name: the text of a variable; of an array the JSON of its texts
    if ! __casemate_is_name "$2" || [[ $2 == __casemate_* ]]; then
        __casemate_refuse "$1" "$2 is not the name of a variable"
    elif ! __casemate_attributes "$2"; then
        __casemate_refuse "$1" "there is no variable $2"
    else
        __casemate_read_value "$2"
        if ((${#__casemate_value} > 8388608)); then
            __casemate_refuse "$1" "$2 holds more than 8 MiB"
        else
            __casemate_quote "$__casemate_value"
            __casemate_reply "$1" "\"text\":$__casemate_quoted"
        fi
    fi
    __casemate_value=
}

__casemate_read_value() {  # name -> __casemate_value
    case $__casemate_attributes in
        *A*)
            builtin local -n "__casemate_array=$1"
            builtin local __casemate_key __casemate_all=
            for __casemate_key in "${!__casemate_array[@]}"; do
                __casemate_quote "$__casemate_key"
                __casemate_all+=,$__casemate_quoted
                __casemate_quote "${__casemate_array[$__casemate_key]}"
                __casemate_all+=:$__casemate_quoted
            done
            __casemate_value={${__casemate_all#,}}
            ;;
        *a*)
            builtin local -n "__casemate_array=$1"
            __casemate_quote_all "${__casemate_array[@]}"
            __casemate_value=$__casemate_quoted
            ;;
        *) __casemate_value=${!1-} ;;
    esac
}

__casemate_set() {  # id, name, bytes of value
    __casemate_read "$3" __casemate_value
    if ! __casemate_is_name "$2" || __casemate_is_own "$2"; then
        __casemate_refuse "$1" "$2 is not a variable that can be set"
    elif ! { builtin unset -n "$2" && builtin unset -v "$2"; } 2>/dev/null; then
        __casemate_refuse "$1" "$2 is read-only"
    else
        builtin printf -v "$2" %s "$__casemate_value"
        __casemate_update_names
        __casemate_reply "$1" '"value":null'
    fi
    __casemate_value=
}
