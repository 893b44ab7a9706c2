# dtrain.bash - completion for bash: options from --help, keys and their values from `dtrain
# --keys`, file names. Loaded by bash-completion, or by `. dtrain.bash`. The output of each program
# is cached per shell.

_dtrain_ask() { # COMMAND OPTION: sets REPLY to its output
    local name="_dtrain_said_${1//[^a-zA-Z0-9]/_}_${2//[^a-z]/_}"
    if [ -z "${!name+x}" ]; then printf -v "$name" '%s' "$("$1" "$2" 2>/dev/null)"; fi
    REPLY=${!name}
}

_dtrain_options() { grep -oE -- '(^|[ ,])--[a-z][a-z-]*' <<<"$REPLY" | tr -d ' ,' | sort -u; }

# Values of options, which the help does not list in a parsable form.
_dtrain_words() { # COMMAND OPTION
    case ${1##*/}:$2 in
    dtrain-data:--kind) echo auto tokens sft preference prompts ;;
    dtrain-data:--format) echo auto text json minionerec ;;
    dtrain-data:--recipe) echo sft rl eval ;;
    dtrain-data:--documents) echo files lines paragraphs ;;
    dtrain-data:--mask) echo auto full completion assistant ;;
    dtrain-data:--prefer) echo better safer ;;
    dtrain-data:--truncate) echo keep_start keep_end drop ;;
    dtrain-convert:--to) echo checkpoint hf ;;
    dtrain-convert:--dtype) echo fp32 bf16 fp16 ;;
    dtrain-generate:--dtype) echo fp32 bf16 ;;
    dtrain-generate:--device) echo auto cpu cuda ;;
    dtrain-generate:--zero-stage) echo 0 3 ;;
    dtrain-sid:--method) echo rqvae kmeans balanced ;;
    dtrain-sid:--dtype) echo fp32 bf16 fp16 ;;
    dtrain-sid:--device) echo auto cpu cuda ;;
    dtrain-plot:-x | dtrain-plot:--x) echo step tokens time ;;
    esac
}

# Parse "[section]" and "  key   one of a, b; default: a" lines, which continue in the column of "one": list all
# "section.key", or the values of one key.
_dtrain_keys() { awk '/^\[/ { s = substr($1, 2, length($1) - 2) } /^  [a-z]/ { print s "." $1 }' <<<"$REPLY"; }
_dtrain_values() { # KEY
    awk -v key="$1" '/^\[/ { s = substr($1, 2, length($1) - 2) }
        /^  [a-z]/ { found = s "." $1 == key }
        found && /^(  [a-z]|          )/ { text = text " " $0 }
        END {
            if (text !~ /one of|true or false/) exit
            sub(/^.*one of /, "", text); sub(/^.*true or false/, "true, false", text); sub(/;.*/, "", text); gsub(/,/, "", text)
            n = split(text, word)
            for (i = 1; i <= n; i++) printf "%s%s", word[i], i < n ? " " : "\n"
        }' <<<"$REPLY"
}

_dtrain_complete() {
    local command=$1 word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} list='' files=yes REPLY
    local name=${command##*/} # bash splits words at "=": KEY, =, VALUE
    COMPREPLY=()
    if [[ $word == "=" && $name == dtrain ]]; then before='=' word='' COMP_CWORD=$((COMP_CWORD + 1)); fi
    if [[ $before == "=" && $name == dtrain ]]; then
        _dtrain_ask "$command" --keys
        list=$(_dtrain_values "${COMP_WORDS[COMP_CWORD - 2]}")
    elif [[ $word == -* ]]; then
        _dtrain_ask "$command" --help
        list=$(_dtrain_options) files=
    elif [[ $name == dtrain && $before == --keys ]]; then
        _dtrain_ask "$command" --keys
        list=$(_dtrain_keys) files=
    elif [[ $before == -* ]]; then
        list=$(_dtrain_words "$command" "$before")
    elif [[ $name == dtrain && $COMP_CWORD -gt 1 ]]; then
        _dtrain_ask "$command" --keys
        list=$(_dtrain_keys | sed 's/$/=/')
    elif [[ $name == dtrain-data && $COMP_CWORD == 1 ]]; then
        list="info show"
    fi
    COMPREPLY=($(compgen -W "$list" -- "$word"))
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2>/dev/null; fi
    if [[ -n $files && ${#COMPREPLY[@]} -eq 0 ]]; then
        local IFS=$'\n'
        COMPREPLY=($(compgen -f -- "$word"))
        compopt -o filenames 2>/dev/null
    fi
    return 0
}
complete -F _dtrain_complete dtrain dtrain-data dtrain-convert dtrain-generate dtrain-info dtrain-plot dtrain-sid
