import { writeFileSync } from 'node:fs'
import { flagOf, isReplaced, loadCommands, optionNames, VALUED_OPTIONS } from './commands.ts'
import { rememberedIds } from './completion-ids.ts'
import { EXIT } from './failure.ts'
import { type OperatorVerbs, OWN_COMMANDS, OWN_WORDS, type OwnName } from './own-commands.ts'
import { cacheFile, profileOf } from './profiles.ts'
import { visible } from './terminal.ts'
import { isBoolean } from './values.ts'

type Candidate = [text: string, description?: string]

/** Text that no shell expands: shells insert some candidates unquoted, and a service may have written them. */
const PLAIN = /^[\w.,:@%+=/-]+$/

/** `muster __complete`: prints candidates for the last of the words, without any request. */
export function main(words: readonly string[], operatorVerbs: OperatorVerbs): number {
  const current = words.at(-1) ?? ''
  const found = candidates(words.slice(0, -1), current, operatorVerbs).filter(
    ([text]) => text.startsWith(current) && PLAIN.test(text),
  )
  // Opening the stream of stdout takes longer.
  writeFileSync(
    1,
    found
      .map(([text, description]) => `${[text, description && visible(description)].filter(Boolean).join('\t')}\n`)
      .join(''),
  )
  return EXIT.done
}

function candidates(before: readonly string[], current: string, operatorVerbs: OperatorVerbs): Candidate[] {
  const profile = profileOf(before)
  const table = loadCommands(cacheFile(profile, 'commands.json'))
  const words = positionals(before, [])
  const command = table.find(words)
  if (!command) {
    const own = [...Object.entries(OWN_COMMANDS), ...Object.entries(operatorVerbs)]
    const next = new Map<string, string | undefined>()
    const add = (all: readonly string[], summary: string) => {
      if (!words.every((word, index) => all[index] === word) || all.length <= words.length) return
      next.set(all[words.length], all.length === words.length + 1 ? summary : next.get(all[words.length]))
    }
    // Modules have no summary, so nothing is parsed for them.
    if (words.length === 0) for (const each of table.words()) add(each, '')
    else for (const each of table.below(words)) add(each.words, each.summary)
    for (const [name, summary] of own) add(name.split(' '), summary)
    for (const each of OWN_WORDS[words.join(' ') as OwnName] ?? []) next.set(each, undefined)
    return [...next]
  }
  const fields = command.fields.filter(each => each.in !== 'path' && !isReplaced(command, each))
  const valued = fields.filter(each => !isBoolean(each)).map(each => flagOf(command, each))
  const option = before.at(-1) ?? ''
  const field = fields.find(each => `--${flagOf(command, each)}` === option)
  const values = field?.enum ?? field?.items?.enum
  if (values) return values.filter(each => each !== null).map(each => [String(each)])
  if (isValued(option, valued)) return []
  if (current.startsWith('-'))
    return [
      ...fields.map((each): Candidate => [`--${flagOf(command, each)}`, each.description]),
      ...optionNames(command).map((name): Candidate => [`--${name}`]),
    ]
  const parameters = command.fields.filter(each => each.in === 'path')
  const parameter = parameters[positionals(before, valued).length - command.words.length]
  return parameter ? rememberedIds(profile, command, parameter.name) : []
}

const isValued = (option: string, valued: readonly string[]): boolean =>
  option.startsWith('--') && (VALUED_OPTIONS.has(option.slice(2)) || valued.includes(option.slice(2)))

/** Returns the arguments that are neither options nor their values. */
const positionals = (args: readonly string[], valued: readonly string[]): string[] =>
  args.filter((each, index) => !each.startsWith('-') && !isValued(args[index - 1] ?? '', valued))
