import { commandsBelow, findCommand, flagOf, isReplaced, loadCommands, optionNames } from './commands.ts'
import { rememberedIds } from './completion-ids.ts'
import { EXIT, UsageError } from './failure.ts'
import { type OperatorVerbs, OWN_COMMANDS } from './own-commands.ts'
import { cacheFile, profileName } from './profiles.ts'
import { printLine, visible, write } from './terminal.ts'

type Candidate = [text: string, description?: string]

const SCRIPTS: Record<string, string> = {
  bash: `_muster() {
  local IFS=$'\\n'
  COMPREPLY=($(compgen -W "$(muster __complete "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1)" -- "\${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _muster muster`,
  zsh: `#compdef muster
_muster() {
  local -a found
  local line
  while IFS=$'\\t' read -r name text; do
    found+=("\${name//:/\\\\:}\${text:+:$text}")
  done < <(muster __complete "\${(@)words[2,CURRENT]}" 2>/dev/null)
  if (( \${#found} )); then _describe muster found; else _files; fi
}
compdef _muster muster`,
  fish: `complete -c muster -f -a '(muster __complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'`,
  pwsh: `Register-ArgumentCompleter -Native -CommandName muster -ScriptBlock {
  param($word, $ast, $position)
  $words = @($ast.CommandElements | Select-Object -Skip 1 | ForEach-Object { $_.ToString() })
  if ($word -eq '') { $words += '' }
  muster __complete @words 2>$null | ForEach-Object {
    $name, $text = $_ -split "\`t", 2
    if (-not $text) { $text = $name }
    [System.Management.Automation.CompletionResult]::new($name, $name, 'ParameterValue', $text)
  }
}`,
}

/** `muster completion <shell>`: prints a script. */
export async function completionCommand([shell = '']: string[]): Promise<number> {
  const usage = 'Usage: muster completion bash|zsh|fish|pwsh'
  if (shell === '--help') await printLine(usage)
  else if (!Object.hasOwn(SCRIPTS, shell)) throw new UsageError('the shell must be bash, zsh, fish or pwsh', usage)
  else await printLine(SCRIPTS[shell])
  return EXIT.done
}

/** `muster __complete`: prints candidates for the last of the words, without any request. */
export async function complete(words: readonly string[], operatorVerbs: OperatorVerbs): Promise<number> {
  const current = words.at(-1) ?? ''
  const found = candidates(words.slice(0, -1), current, operatorVerbs).filter(([text]) => text.startsWith(current))
  await write(
    found
      .map(([text, description]) => `${[text, description && visible(description)].filter(Boolean).join('\t')}\n`)
      .join(''),
  )
  return EXIT.done
}

function candidates(before: readonly string[], current: string, operatorVerbs: OperatorVerbs): Candidate[] {
  const at = before.indexOf('--profile')
  const profile = profileName(at < 0 ? undefined : before[at + 1])
  const table = loadCommands(cacheFile(profile, 'commands.json'))
  const command = findCommand(table, before)
  if (!command) {
    const own = [...Object.entries(OWN_COMMANDS), ...Object.entries(operatorVerbs)]
    const next = new Map<string, string | undefined>()
    const add = (all: readonly string[], summary: string) => {
      if (!before.every((word, index) => all[index] === word) || all.length <= before.length) return
      next.set(all[before.length], all.length === before.length + 1 ? summary : next.get(all[before.length]))
    }
    for (const { words, summary } of commandsBelow(table, before)) add(words, summary)
    for (const [name, summary] of own) add(name.split(' '), summary ?? '')
    return [...next]
  }
  const option = before.at(-1) ?? ''
  const field = command.fields.find(each => each.in !== 'path' && `--${flagOf(command, each)}` === option)
  const values = field?.enum ?? field?.items?.enum
  if (values) return values.filter(each => each !== null).map(each => [String(each)])
  if (current.startsWith('-')) {
    const fields = command.fields
      .filter(each => each.in !== 'path' && !isReplaced(command, each))
      .map((each): Candidate => [`--${flagOf(command, each)}`, each.description])
    return [...fields, ...optionNames(command).map((name): Candidate => [`--${name}`])]
  }
  const paths = command.fields.filter(each => each.in === 'path')
  const given = before.slice(command.words.length).filter(each => !each.startsWith('-')).length
  const parameter = paths[given]
  return parameter ? rememberedIds(profile, command, parameter.name) : []
}
