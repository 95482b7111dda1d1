import { Help } from 'commander'
import { type ApiCommand, type CommandTable, flagOf, hasJsonBody, isTurn, needsConfirmation } from './commands.ts'
import { type OperatorVerbs, OWN_COMMANDS, ownBelow } from './own-commands.ts'
import { parserOf } from './parse.ts'
import { printLine, visible } from './terminal.ts'

const DOCS = 'docs/cli.md'

const EXIT_CODES = `Exit codes: 0 done, 1 failed otherwise, 2 wrong usage, 3 not signed in, 4 not permitted, 5 not found, 6 conflict,
7 invalid request, 8 over a limit, 9 the server failed, 10 no answer, 11 the work failed, 12 the work waits for an input,
13 --timeout passed, 130 and 143 interrupted.`

const helpWidth = (): number => Math.max(40, process.stdout.columns || 120)

const columns = (rows: [name: string, text: string][]): string => {
  const width = Math.max(...rows.map(([name]) => name.length))
  const formatter = new Help()
  formatter.prepareContext({ helpWidth: helpWidth() })
  return rows.map(([name, text]) => formatter.formatItem(name, width, text, formatter).trimEnd()).join('\n')
}

/** Prints the help of a command, of a group of commands, or of the program. Returns false without such a command. */
export async function printHelp(
  words: readonly string[],
  table: CommandTable,
  operatorVerbs: OperatorVerbs,
): Promise<boolean> {
  // The service of a synchronized profile has written some of it.
  const print = (text: string) => printLine(visible(text, 'lines'))
  if (words.length === 0) await print(programHelp(table, operatorVerbs))
  else {
    const command = table.find(words)
    if (command) await print(commandHelp(command))
    else {
      const below = table.below(words)
      if (below.length === 0 && ownBelow(words).length === 0) return false
      await print(groupHelp(words, below, operatorVerbs))
    }
  }
  return true
}

/** Returns the section of the commands for a deployment; an installed command line has none. */
const operate = (operatorVerbs: OperatorVerbs): string =>
  Object.keys(operatorVerbs).length > 0 ? `Operate this deployment:\n${columns(Object.entries(operatorVerbs))}\n\n` : ''

function programHelp(table: CommandTable, operatorVerbs: OperatorVerbs): string {
  const modules = [...new Set(table.words().map(words => words[0]))].sort()
  const lines = new Help().boxWrap(modules.join('  '), Math.min(helpWidth(), 112) - 2)
  return `Usage: muster <module> <verb> [arguments]

Self-hosted back end for AI agent applications on PostgreSQL alone.

Modules (muster <module> --help lists the verbs):
${lines.replace(/^/gm, '  ')}

This program:
${columns(Object.entries(OWN_COMMANDS))}

${operate(operatorVerbs)}Examples:
  $ muster login --url https://muster.example     sign in with the browser
  $ muster agents list                            the agents of the project
  $ muster agents generate <agent_id> --prompt Hi stream a reply

${EXIT_CODES}
Documentation: ${DOCS}`
}

function groupHelp(words: readonly string[], below: readonly ApiCommand[], operatorVerbs: OperatorVerbs): string {
  const name = words.join(' ')
  const rows = below.map((each): [string, string] => [
    [...each.words, ...each.fields.filter(field => field.in === 'path').map(field => `<${field.name}>`)].join(' '),
    each.summary,
  ])
  const operator = Object.entries(operatorVerbs).filter(([verb]) => verb.startsWith(`${name} `))
  return [
    `Usage: muster ${name} <verb> [arguments]\n`,
    columns([...rows, ...ownBelow(words)]),
    ...(operator.length > 0 ? ['\nOperate this deployment:', columns(operator)] : []),
    `\nmuster ${name} <verb> --help describes a verb.`,
  ].join('\n')
}

/** Returns the help of an API command. */
export function commandHelp(command: ApiCommand): string {
  const { parser } = parserOf(command)
  const { summary, description, action, words } = command
  parser.helpOption('--help', 'show this help').description([`${summary}.`, description].filter(Boolean).join('\n'))
  parser.configureHelp({ helpWidth: helpWidth() })
  return [
    parser.helpInformation().trimEnd(),
    `Examples:\n${examplesOf(command)
      .map(each => `  $ ${each}`)
      .join('\n')}`,
    `Permission: ${action ?? 'none'}`,
    EXIT_CODES,
    `Documentation: ${DOCS}, /docs of the service (${words.join(' ')}: ${command.method} /api/v1${command.path})`,
  ].join('\n\n')
}

function examplesOf(command: ApiCommand): string[] {
  const { words, fields } = command
  const paths = fields.filter(each => each.in === 'path').map(each => `<${each.name}>`)
  const start = ['muster', ...words, ...paths].join(' ')
  const required = fields
    .filter(each => each.required && each.in !== 'path' && each.name !== 'file')
    .map(each => `--${flagOf(command, each)} ${each.secret ? '@-' : each.enum ? each.enum[0] : '…'}`)
  const all = [start, ...required, ...(command.consumes ? ['--file report.pdf'] : [])].join(' ')
  const yes = needsConfirmation(command) ? ' --yes' : ''
  if (isTurn(command)) return [all, `${all} --json`]
  if (hasJsonBody(command)) return [`${all}${yes}`, `${start} --body @body.json${yes}`]
  if (command.paged) return [all, `${all} --all --jsonl`]
  return [`${all}${yes}`, `${all}${yes} --json`]
}
