
# Completes the command of `muxlock run` as a command line of its own.
function __fish_muxlock_has_resource
    set -l names 0
    set -l is_value 0
    for word in (commandline -opc)
        if test $is_value = 1
            set is_value 0
            continue
        end
        switch $word
            case -c --command
                return 1
            case OPTIONS
                set is_value 1
            case '-*'
            case '*'
                set names (math $names + 1)
                test $names = 3; and return 0
        end
    end
    return 1
end
complete -c muxlock -n "__fish_muxlock_using_subcommand run; and __fish_muxlock_has_resource" -f -a "(__fish_complete_subcommand --fcs-skip=3 OPTIONS)"
