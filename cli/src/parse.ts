import { CommanderError, InvalidArgumentError, Option, Command as Parser } from 'commander'
import { type ApiCommand, type CommandField, flagOf, isReplaced, optionNames } from './commands.ts'
import { UsageError } from './failure.ts'
import { isBoolean, isRepeatable } from './values.ts'

const collect = (value: string, previous: string[] | undefined): string[] => [...(previous ?? []), value]

/** Returns the milliseconds of `500ms`, `30s`, `10m` or `2h`; a number alone is seconds. */
export function parseDuration(text: string): number {
  const [, digits, unit = 's'] = /^(\d+(?:\.\d+)?)(ms|s|m|h)?$/.exec(text) ?? []
  if (digits === undefined) throw new InvalidArgumentError('must be a duration, for example 30s or 10m')
  return Number(digits) * { ms: 1, s: 1000, m: 60_000, h: 3_600_000 }[unit as 's']
}

function parseCount(text: string): number {
  if (!/^\d+$/.test(text) || Number(text) < 1) throw new InvalidArgumentError('must be an integer of at least 1')
  return Number(text)
}

type Make = () => Option

const CONNECTION = {
  url: () => new Option('--url <address>', 'address of the service; default MUSTER_URL, then the profile'),
  profile: () => new Option('--profile <name>', 'profile; default MUSTER_PROFILE, then default'),
  project: () => new Option('--project <id or name>', 'project; default MUSTER_PROJECT, then the profile'),
  quiet: () => new Option('--quiet', 'no progress, notes and warnings'),
  debug: () => new Option('--debug', 'print requests and answers on stderr, without secrets'),
  'insecure-http': () => new Option('--insecure-http', 'allow http to another machine'),
} satisfies Record<string, Make>

const OUTPUT = {
  json: () => new Option('--json', 'print the unchanged answer; default unless stdout is a terminal'),
  jsonl: () => new Option('--jsonl', 'print one item a line as JSON'),
  field: () => new Option('--field <path>', 'print one field as text, for example id or output.content'),
  columns: () => new Option('--columns <paths>', 'columns of a table, separated by commas'),
  utc: () => new Option('--utc', 'print times in UTC'),
} satisfies Record<string, Make>

const OTHERS: Record<string, Make> = {
  'print-request': () => new Option('--print-request', 'print the request as curl and send nothing'),
  timeout: () => new Option('--timeout <duration>', 'limit of an answer and of --wait').argParser(parseDuration),
  'idempotency-key': () => new Option('--idempotency-key <key>', 'a repeat with this key has no further effect'),
  'if-match': () => new Option('--if-match <etag>', 'refuse if the record has changed since it had this ETag'),
  body: () => new Option('--body <json>', 'the whole body: JSON, @file or @-; options of fields replace its fields'),
  set: () => new Option('--set <path=value>', 'set one value of the body; repeatable').argParser(collect),
  clear: () => new Option('--clear <field>', 'send null; repeatable').argParser(collect),
  file: () => new Option('--file <path>', 'file to send, or - for stdin'),
  filename: () => new Option('--filename <name>', 'name of the file that is sent'),
  'content-type': () => new Option('--content-type <type>', 'type of the file that is sent'),
  output: () => new Option('--output <path>', 'write the answer to a file'),
  all: () => new Option('--all', 'print the items of all pages'),
  max: () => new Option('--max <number>', 'stop after this number of items of all pages').argParser(parseCount),
  wait: () => new Option('--wait', 'wait until the work has ended'),
  'cancel-on-interrupt': () => new Option('--cancel-on-interrupt', 'cancel the work on Ctrl-C'),
  events: () => new Option('--events', 'print every event as a line of JSON'),
  tools: () => new Option('--tools <module>', 'run calls of client tools with the functions that a module exports'),
  follow: () => new Option('--follow', 'print changes as they happen'),
  'dry-run': () => new Option('--dry-run', 'only check what the command would do'),
  'allow-argv': () => new Option('--allow-argv', 'allow a secret as an argument, where other users can see it'),
  yes: () => new Option('--yes', 'change without a confirmation'),
}

const ALL: Record<string, Make> = { ...CONNECTION, ...OUTPUT, ...OTHERS }

/** Options that every command accepts, also before its words: whether they have a value. */
export const GLOBAL = new Map(
  Object.entries({ ...CONNECTION, ...OUTPUT }).map(([name, make]) => [`--${name}`, make().required]),
)

/** Adds the options of commands that call the service. */
export function addConnectionOptions(parser: Parser, { output = true } = {}): Parser {
  for (const make of Object.values({ ...CONNECTION, ...(output ? OUTPUT : {}) })) parser.addOption(make())
  return parser
}

const kindOf = ({ type, enum: values, items }: CommandField): string => {
  const listed = values ?? items?.enum
  if (listed) return listed.filter(each => each !== null).join('|')
  const types = [type ?? 'value'].flat().filter(each => each !== 'null')
  return types
    .map(each => ({ string: 'text', integer: 'number', array: 'list', object: 'json' })[each] ?? each)
    .join('|')
}

/** Returns the option of a field, and its negation. */
function fieldOptions(command: ApiCommand, field: CommandField): Option[] {
  const flag = flagOf(command, field)
  const keys = field.keys ?? field.items?.keys
  const text = [field.description, field.required && '(required)', keys && `(keys: ${keys.join(', ')})`]
    .filter(Boolean)
    .join(' ')
  const options = isBoolean(field)
    ? [new Option(`--${flag}`, text), new Option(`--no-${flag}`).hideHelp()]
    : [new Option(`--${flag} <${kindOf(field)}>`, text).argParser(isRepeatable(field) ? collect : value => [value])]
  // Fields whose names differ in their spelling alone are different fields.
  for (const option of options) option.attributeName = () => attributeOf(field)
  return options
}

const attributeOf = ({ name }: CommandField): string => `field ${name}`

const streamOptions = (): Option[] => [
  new Option('--stream', 'stream the reply; default on a terminal'),
  new Option('--no-stream').hideHelp(),
]

/** A parsed command line of an API command. */
export type Parsed = {
  /** Values of path parameters by name. */
  path: Record<string, string>
  /** Texts of the options of fields by name of the field; booleans as they are. */
  fields: Map<CommandField, string[] | boolean>
  options: Record<string, any>
}

/** Returns a parser that throws instead of ending the process. */
export function createParser(name: string): Parser {
  return new Parser(name).exitOverride().allowExcessArguments(false).showSuggestionAfterError()
}

/** Creates the parser of an API command. */
export function parserOf(command: ApiCommand): { parser: Parser; fieldOf: Map<string, CommandField> } {
  const parser = createParser(`muster ${command.words.join(' ')}`)
  const fieldOf = new Map<string, CommandField>()
  for (const { name, description } of command.fields.filter(each => each.in === 'path'))
    parser.argument(`<${name}>`, description ?? '')
  for (const field of command.fields) {
    if (field.in === 'path') continue
    if (isReplaced(command, field)) {
      if (field.name === command.stream?.selected_by?.name)
        for (const option of streamOptions()) parser.addOption(option.helpGroup('Fields:'))
      if (field.name === 'file') parser.addOption(OTHERS.file().helpGroup('Fields:'))
      if (field.name === command.wait?.parameter)
        parser.addOption(OTHERS.wait().helpGroup('Fields:')).addOption(new Option('--no-wait').hideHelp())
      continue
    }
    for (const option of fieldOptions(command, field)) {
      fieldOf.set(option.attributeName(), field)
      parser.addOption(option.helpGroup('Fields:'))
    }
  }
  const taken = new Set(parser.options.map(each => each.long))
  for (const name of optionNames(command)) if (ALL[name] && !taken.has(`--${name}`)) parser.addOption(ALL[name]())
  if (optionNames(command).includes('stream') && !taken.has('--stream'))
    for (const option of streamOptions()) parser.addOption(option)
  return { parser, fieldOf }
}

/** Parses the arguments after the words of a command. @throws UsageError */
export function parseCommand(command: ApiCommand, args: readonly string[]): Parsed {
  const { parser, fieldOf } = parserOf(command)
  const { options, positional } = parseWith(parser, args)
  const names = command.fields.filter(each => each.in === 'path').map(each => each.name)
  const fields = new Map<CommandField, string[] | boolean>()
  for (const [attribute, field] of fieldOf)
    if (options[attribute] !== undefined) fields.set(field, options[attribute] as string[] | boolean)
  return { path: Object.fromEntries(names.map((name, index) => [name, positional[index]])), fields, options }
}

/** Parses arguments; errors of the parser become usage errors. Help is printed by the caller. */
export function parseWith(
  parser: Parser,
  args: readonly string[],
): { options: Record<string, any>; positional: string[] } {
  parser.helpOption(false).configureOutput({ writeErr: () => {} })
  try {
    parser.action(() => {}).parse(args, { from: 'user' })
  } catch (error) {
    if (error instanceof CommanderError)
      throw new UsageError(error.message.replace(/^error: /, ''), `Try: ${parser.name()} --help`)
    throw error
  }
  return { options: parser.opts(), positional: parser.args }
}
