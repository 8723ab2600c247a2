
# Completes the command of `muxlock run` as a command line of its own, and files for `unlock`.
_muxlock_or_command() {
    local i word has_resource='' is_literal=''
    [[ ${COMP_WORDS[1]-} == run ]] || {
        _muxlock "$@"
        case ${COMP_WORDS[1]-} in
            unlock | renew)
                # Instead of options, bash then shows files.
                [[ ! ${COMP_WORDS[COMP_CWORD]} && ${COMPREPLY[0]-} == -* ]] && COMPREPLY=()
                ;;
        esac
        return 0
    }
    for ((i = 2; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $word == [:=] ]]; then
            # Bash splits words there.
            ((i++))
        elif [[ $word == -* && ! $is_literal ]]; then
            case $word in
                --) is_literal=1 ;;
                -c | --command) break ;;
                OPTIONS)
                    [[ ${COMP_WORDS[i + 1]-} == '=' ]] && ((i++))
                    ((i++))
                    ;;
            esac
        elif [[ ! $has_resource ]]; then
            has_resource=1
        elif declare -F _command_offset >/dev/null; then
            _command_offset "$i"
            return
        elif ((i == COMP_CWORD)); then
            mapfile -t COMPREPLY < <(compgen -c -- "$word")
            return
        else
            mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
            return
        fi
    done
    _muxlock "$@"
}

complete -F _muxlock_or_command -o bashdefault -o default muxlock
