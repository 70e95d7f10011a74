// Shell completion, generated from the tree of subcommands and options so that it never falls behind it.
#include <string>
#include <vector>

#include "command.h"
#include "pull/catalogue.h"

namespace pith {

namespace {

struct OptionInfo {
  std::vector<std::string> names;  // "-m", "--model"; empty for a positional
  std::string description;
  bool takes_value = false;
  CompletionHint hint;
};

struct CommandInfo {
  std::string name;
  std::string description;
  std::vector<OptionInfo> options;
  std::vector<OptionInfo> positionals;
};

std::string FirstSentence(const std::string& text) { return text.substr(0, text.find('.')); }

std::string Join(const std::vector<std::string>& words, const std::string& between = " ") {
  std::string joined;
  for (const auto& word : words) joined += (joined.empty() ? "" : between) + word;
  return joined;
}

std::vector<CommandInfo> Describe(const CLI::App& root) {
  std::vector<CommandInfo> commands;
  for (const CLI::App* app : root.get_subcommands([](const CLI::App* sub) { return !sub->get_name().empty(); })) {
    CommandInfo command{app->get_name(), FirstSentence(app->get_description()), {}, {}};
    for (const CLI::Option* option : app->get_options()) {
      OptionInfo info;
      for (const auto& name : option->get_snames()) info.names.push_back("-" + name);
      for (const auto& name : option->get_lnames()) info.names.push_back("--" + name);
      info.description = FirstSentence(option->get_description());
      info.takes_value = option->get_items_expected_max() > 0;
      info.hint = CompletionOf(option);
      if (info.hint.kind == CompletionHint::Kind::kModel) {
        for (const auto& entry : Catalogue()) info.hint.words.push_back(entry.name);
      }
      (option->get_positional() ? command.positionals : command.options).push_back(std::move(info));
    }
    commands.push_back(std::move(command));
  }
  return commands;
}

// Text inside single quotes of a POSIX shell.
std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

bool CompletesFiles(const CompletionHint& hint) {
  return hint.kind == CompletionHint::Kind::kFile || hint.kind == CompletionHint::Kind::kModel;
}

std::string BashReply(const CompletionHint& hint) {
  std::string reply;
  if (!hint.words.empty()) reply += "$(compgen -W " + Quoted(Join(hint.words)) + " -- \"$current\") ";
  if (CompletesFiles(hint)) reply += "$(compgen -f -- \"$current\")";
  return "COMPREPLY=(" + reply + ")";
}

std::string Bash(const std::vector<CommandInfo>& commands) {
  std::vector<std::string> names;
  for (const auto& command : commands) names.push_back(command.name);
  std::string values;
  std::string options;
  for (const auto& command : commands) {
    std::vector<std::string> all;
    for (const auto& option : command.options) {
      std::vector<std::string> patterns;
      for (const auto& name : option.names) {
        all.push_back(name);
        patterns.push_back(command.name + ":" + name);
      }
      if (option.takes_value) values += "    " + Join(patterns, "|") + ") " + BashReply(option.hint) + "; return ;;\n";
    }
    CompletionHint positional;
    if (!command.positionals.empty()) positional = command.positionals.front().hint;
    options += "    " + command.name + ")\n      if [[ $current == -* ]]; then COMPREPLY=($(compgen -W " +
               Quoted(Join(all)) + " -- \"$current\"))\n      else " + BashReply(positional) + "; fi ;;\n";
  }
  return "# bash completion for pith; load it with: source <(pith completion bash)\n"
         "_pith() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}\n"
         "  COMPREPLY=()\n"
         "  if [ \"$COMP_CWORD\" -eq 1 ]; then COMPREPLY=($(compgen -W " +
         Quoted(Join(names) + " --help --version") +
         " -- \"$current\")); return; fi\n"
         "  case \"$command:$previous\" in\n" +
         values + "  esac\n  case \"$command\" in\n" + options + "  esac\n}\ncomplete -o filenames -F _pith pith\n";
}

// Text of a zsh _arguments specification: brackets and colons have a meaning there.
std::string ZshEscaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string ZshAction(const CompletionHint& hint) {
  if (hint.kind == CompletionHint::Kind::kFile) return "_files";
  if (hint.words.empty()) return " ";
  const std::string words = "(" + Join(hint.words) + ")";
  // For a model both the names and the files.
  return CompletesFiles(hint) ? "{compadd -- " + Join(hint.words) + "; _files}" : words;
}

std::string Zsh(const std::vector<CommandInfo>& commands) {
  std::string list;
  std::string cases;
  for (const auto& command : commands) {
    list += "    " + Quoted(ZshEscaped(command.name) + ":" + command.description) + "\n";
    std::string specs;
    for (const auto& option : command.options) {
      for (const auto& name : option.names) {
        std::string spec = name + "[" + ZshEscaped(option.description) + "]";
        if (option.takes_value) spec += ":value:" + ZshAction(option.hint);
        specs += " \\\n        " + Quoted(spec);
      }
    }
    for (const auto& positional : command.positionals)
      specs += " \\\n        " + Quoted("*:value:" + ZshAction(positional.hint));
    cases += "    " + command.name + ")\n      _arguments" + specs + " ;;\n";
  }
  return "#compdef pith\n# zsh completion for pith; load it with: source <(pith completion zsh)\n"
         "_pith() {\n"
         "  local -a commands=(\n" +
         list +
         "  )\n"
         "  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
         "  local command=$words[2]\n"
         "  shift words; (( CURRENT-- ))\n"
         "  case $command in\n" +
         cases + "  esac\n}\ncompdef _pith pith\n";
}

std::string Fish(const std::vector<CommandInfo>& commands) {
  std::string script =
      "# fish completion for pith; load it with: pith completion fish | source\n"
      "complete -c pith -f\n"
      "complete -c pith -n __fish_use_subcommand -l help -d 'Print the help'\n"
      "complete -c pith -n __fish_use_subcommand -l version -d 'Print the version'\n";
  for (const auto& command : commands) {
    script +=
        "complete -c pith -n __fish_use_subcommand -a " + command.name + " -d " + Quoted(command.description) + "\n";
    const std::string where = "complete -c pith -n '__fish_seen_subcommand_from " + command.name + "'";
    for (const auto& option : command.options) {
      std::string line = where;
      for (const auto& name : option.names)
        line += name.size() == 2 ? " -s " + name.substr(1) : " -l " + name.substr(2);
      if (option.takes_value) line += CompletesFiles(option.hint) ? " -r -F" : " -x";
      if (!option.hint.words.empty()) line += " -a " + Quoted(Join(option.hint.words));
      script += line + " -d " + Quoted(option.description) + "\n";
    }
    for (const auto& positional : command.positionals) {
      if (CompletesFiles(positional.hint)) script += where + " -F\n";
      if (!positional.hint.words.empty()) script += where + " -a " + Quoted(Join(positional.hint.words)) + "\n";
    }
  }
  return script;
}

}  // namespace

std::string CompletionScript(const CLI::App& root, const std::string& shell) {
  const auto commands = Describe(root);
  if (shell == "bash") return Bash(commands);
  if (shell == "zsh") return Zsh(commands);
  return Fish(commands);
}

}  // namespace pith
