{% if shell == "zsh" %}
autoload -U +X compinit bashcompinit && compinit && bashcompinit
{% endif %}
_pate() {
  local words="{{ commands | join(" ") }}"
  if [ "$COMP_CWORD" -gt 1 ]; then
    words=""
    case "${COMP_WORDS[1]}" in
{% for command, flags in commands.items() %}
      {{ command }}) words="{% for flag in flags %}--{{ flag }}={{ " " if not loop.last }}{% endfor %}" ;;
{% endfor %}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -o nospace -F _pate pate
