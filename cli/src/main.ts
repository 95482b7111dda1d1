import { type CommandTable, loadCommands } from './commands.ts'
import { EXIT, UsageError } from './failure.ts'
import { catchSignals } from './interrupt.ts'
import { type OperatorVerbs, OWN_COMMANDS, type OwnName, ownBelow } from './own-commands.ts'
import { GLOBAL } from './parse.ts'
import { cacheFile, profileOf } from './profiles.ts'
import { reportError } from './report.ts'
import { runCommand } from './run.ts'
import { exitOnClosedPipe } from './terminal.ts'

type OwnCommand = (args: string[]) => Promise<number>

const OWN: Record<OwnName, () => Promise<OwnCommand>> = {
  login: async () => (await import('./login.ts')).loginCommand,
  logout: async () => (await import('./login.ts')).logoutCommand,
  whoami: async () => (await import('./login.ts')).whoamiCommand,
  profile: async () => (await import('./profile-command.ts')).profileCommand,
  api: async () => (await import('./api.ts')).apiCommand,
  chat: async () => (await import('./chat.ts')).chatCommand,
  listen: async () => (await import('./listen.ts')).listenCommand,
  'formations deploy': async () => (await import('./deploy.ts')).deployCommand,
  'prices import': async () => (await import('./import-prices.ts')).importPricesCommand,
  open: async () => (await import('./open.ts')).openCommand,
  completion: async () => (await import('./completion.ts')).completionCommand,
  version: async () => (await import('./version.ts')).versionCommand,
}

/** Short words for the first one of commands. */
const SHORT: Record<string, string> = { providers: 'ai-providers' }

/** Runs a command line that is neither an operator verb nor a completion. Returns the exit code. */
export async function main(args: readonly string[], operatorVerbs: OperatorVerbs): Promise<number> {
  exitOnClosedPipe()
  try {
    return await dispatch(args, operatorVerbs)
  } catch (error) {
    return reportError(error)
  }
}

async function dispatch(given: readonly string[], operatorVerbs: OperatorVerbs): Promise<number> {
  const args = moveGlobals(given)
  const isHelp = args[0] === 'help' || args.includes('--help') || args.includes('-h')
  const [first, ...others] = args[0] === 'help' ? args.slice(1) : args
  const rest = first === undefined ? [] : [SHORT[first] ?? first, ...others]
  const words = rest.slice(0, firstOption(rest))
  // The commands of the server of the profile, if the profile was synchronized.
  const table = loadCommands(cacheFile(profileOf(rest), 'commands.json'))
  // Before `chat`, which takes the name of an agent.
  const command = table.find(rest)
  const own = command ? undefined : findOwn(rest)
  if (own) {
    catchSignals()
    return (await OWN[own]())(isHelp ? ['--help'] : rest.slice(own.split(' ').length))
  }
  if (isHelp || words.length === 0) {
    const { printHelp } = await import('./help.ts')
    const isFound = await printHelp(words, table, operatorVerbs)
    if (!isFound) throw unknown(words, table, operatorVerbs)
    return isHelp ? EXIT.done : EXIT.usage
  }
  catchSignals()
  if (!command) {
    if (table.below(words).length === 0 && ownBelow(words).length === 0) throw unknown(words, table, operatorVerbs)
    const { printHelp } = await import('./help.ts')
    await printHelp(words, table, operatorVerbs)
    return EXIT.usage
  }
  return runCommand(table, command, rest.slice(command.words.length))
}

const findOwn = (words: readonly string[]): OwnName | undefined =>
  (Object.keys(OWN_COMMANDS) as OwnName[]).find(name => name.split(' ').every((word, index) => words[index] === word))

const firstOption = (args: readonly string[]): number => {
  const at = args.findIndex(each => each.startsWith('-'))
  return at < 0 ? args.length : at
}

/** Moves options before the words after them. */
function moveGlobals(args: readonly string[]): readonly string[] {
  if (!args[0]?.startsWith('-') || ['--help', '-h'].includes(args[0])) return args
  let end = 0
  while (args[end]?.startsWith('-')) {
    const name = args[end].split('=')[0]
    if (!GLOBAL.has(name)) throw new UsageError(`${name} is no option of every command`, 'Try: muster --help')
    end += GLOBAL.get(name) && !args[end].includes('=') ? 2 : 1
  }
  return [...args.slice(end), ...args.slice(0, end)]
}

function unknown(words: readonly string[], table: CommandTable, operatorVerbs: OperatorVerbs): UsageError {
  const typed = words.join(' ')
  const names = [...table.words().map(each => each.join(' ')), ...Object.keys(OWN_COMMANDS)]
  const near = names
    .map(name => ({ name, distance: distance(typed, words.length === 1 ? name.split(' ')[0] : name) }))
    .sort((a, b) => a.distance - b.distance)[0]
  const isNear = near && near.distance <= Math.max(2, typed.length / 4)
  const suggestion = words.length === 1 ? near?.name.split(' ')[0] : near?.name
  const hint = isNear ? `Did you mean: muster ${suggestion}` : '(run muster help for a list of commands)'
  const isInstalled = Object.keys(operatorVerbs).length === 0
  return new UsageError(
    `there is no command ${typed}`,
    isInstalled ? `${hint}\n  Commands that operate a deployment are in its checkout and its image.` : hint,
  )
}

/** Number of changed letters between two texts. */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, index) => index)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++)
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1))
    row = next
  }
  return row[b.length]
}
