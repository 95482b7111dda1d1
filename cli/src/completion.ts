import { EXIT, UsageError } from './failure.ts'
import { printLine } from './terminal.ts'

const SCRIPTS: Record<string, string> = {
  bash: `_muster() {
  local name
  COMPREPLY=()
  while IFS=$'\\t' read -r name _; do
    COMPREPLY+=("$name")
  done < <(muster __complete "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
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
