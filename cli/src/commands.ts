import { readFileSync } from 'node:fs'
import type { Command, CommandField } from '../../client/build/commands.ts'
import { readCommands } from './bundled.ts'
import { Failure } from './failure.ts'

export type { Command, CommandField }

/** A command whose descriptions of stream and wait are typed. */
export type ApiCommand = Omit<Command, 'stream' | 'wait'> & {
  stream?: { events: string[]; last: string[]; resume: string | null; selected_by: { in: string; name: string } | null }
  wait?: { parameter: string; running: string[]; done: string[]; failed: string[]; paused: string[]; poll: string }
}

/** The start of a file of commands, up to the first command. */
const HEAD = /^\{"version":"([^"]*)","etag":(null|".*"),"commands":\[$/

/** Commands of a version of the service. A command is parsed when it is looked up: parsing all takes 5 ms. */
export class CommandTable {
  readonly version: string
  /** ETag of the description that the table is made from. */
  readonly etag: string | null
  /** Whether the table is of the server of a profile, not of this version. */
  readonly isSynced: boolean
  readonly #file: Buffer

  private constructor(file: Buffer, [version, etag]: readonly string[], isSynced: boolean) {
    this.#file = file
    this.version = version
    this.etag = JSON.parse(etag)
    this.isSynced = isSynced
  }

  /** Reads a file of commands; undefined without one of this layout. */
  static read(readFile: () => Buffer, isSynced: boolean): CommandTable | undefined {
    let file: Buffer
    try {
      file = readFile()
    } catch {
      return undefined
    }
    const head = HEAD.exec(file.toString('utf8', 0, file.indexOf('\n')))
    return head ? new CommandTable(file, head.slice(1), isSynced) : undefined
  }

  /** Returns the command that the arguments start with, which has the most words. */
  find(args: readonly string[]): ApiCommand | undefined {
    if (args.length === 0) return undefined
    return this.below(args.slice(0, 1))
      .filter(({ words }) => words.every((word, index) => args[index] === word))
      .sort((a, b) => b.words.length - a.words.length)[0]
  }

  /** Returns the words of all commands. */
  words(): string[][] {
    return [...this.#file.toString('latin1').matchAll(/^\{"words":(\[.*?\])/gm)].map(([, words]) => JSON.parse(words))
  }

  /** Returns the commands below some words. */
  below(words: readonly string[]): ApiCommand[] {
    return this.#lines(`\n{"words":${JSON.stringify(words).slice(0, -1)}`)
  }

  byId(id: string): ApiCommand | undefined {
    return this.#lines(`],"id":${JSON.stringify(id)},`)[0]
  }

  /** Parses the lines with a text. A line starts with the words of its command and its id. */
  #lines(text: string): ApiCommand[] {
    const found: ApiCommand[] = []
    const file = this.#file
    for (let at = file.indexOf(text); at >= 0; ) {
      const start = file.indexOf('{', file.lastIndexOf('\n', at))
      const end = file.indexOf('\n', start)
      found.push(JSON.parse(file.toString('utf8', start, end).replace(/,$/, '')))
      at = file.indexOf(text, end)
    }
    return found
  }
}

/** Returns the commands of a synchronized file, if there is one, or of this version. */
export function loadCommands(synced?: string): CommandTable {
  const table =
    (synced && CommandTable.read(() => readFileSync(synced), true)) || CommandTable.read(readCommands, false)
  if (!table) throw new Failure('the commands are not built: run npm run build')
  return table
}

const kebab = (name: string): string => name.replaceAll('_', '-')

/** Options that are not fields and have a value. */
export const VALUED_OPTIONS = new Set([
  'url',
  'profile',
  'project',
  'field',
  'columns',
  'timeout',
  'idempotency-key',
  'if-match',
  'body',
  'set',
  'clear',
  'file',
  'filename',
  'content-type',
  'output',
  'max',
  'tools',
])

/** Names of options that are not fields, for the commands that have them. */
export function optionNames(command: ApiCommand): string[] {
  const { fields, method } = command
  const hasBody = hasJsonBody(command)
  const hasField = (name: string) => fields.some(each => kebab(each.name) === name)
  return [
    ...['help', 'url', 'profile', 'project', 'json', 'jsonl', 'field', 'columns', 'utc', 'quiet', 'debug'],
    ...['print-request', 'insecure-http', 'timeout'],
    ...(method === 'POST' ? ['idempotency-key'] : method === 'GET' ? [] : ['if-match']),
    ...(hasBody ? ['body', 'set', 'clear'] : []),
    ...(command.consumes ? ['file', ...['filename', 'content-type'].filter(name => !hasField(name))] : []),
    ...(isDownload(command) ? ['output'] : []),
    ...(command.paged ? ['all', 'max'] : []),
    ...(command.wait && !isTurn(command) ? ['wait', 'cancel-on-interrupt'] : []),
    ...(isTurn(command) ? ['tools', 'cancel-on-interrupt'] : []),
    ...(writesText(command) ? ['stream', 'events'] : []),
    ...(canFollow(command) ? ['follow'] : []),
    ...(command.dryRun && command.dryRun !== 'dry_run' ? ['dry-run'] : []),
    ...(fields.some(each => each.secret) ? ['allow-argv'] : []),
    ...(needsConfirmation(command) || mayCost(command) ? ['yes'] : []),
  ]
}

/** Fields that the command line sets itself. */
export const isReplaced = (command: ApiCommand, { name }: CommandField): boolean =>
  (name === command.wait?.parameter && command.wait !== undefined) ||
  name === command.stream?.selected_by?.name ||
  (name === 'file' && command.consumes !== undefined)

/** Returns the option of a field, without its dashes. A name that is taken by another option is prefixed. */
export function flagOf(command: ApiCommand, field: CommandField): string {
  const flag = kebab(field.name)
  return optionNames(command).includes(flag) && !isReplaced(command, field) ? `field-${flag}` : flag
}

/** Whether a command can be of the project in use. */
export const takesProject = ({ fields }: ApiCommand): boolean =>
  fields.some(each => each.name === 'project_id' && each.in !== 'path')

export const hasJsonBody = ({ method, consumes, fields, open }: ApiCommand): boolean =>
  method !== 'GET' && !consumes && (open === true || fields.some(each => each.in === 'body'))

export const isDownload = ({ produces, stream }: ApiCommand): boolean => produces !== undefined && !stream

/** Whether a command starts or resumes a turn of an agent. */
export const isTurn = ({ wait }: ApiCommand): boolean => wait?.poll === 'getGeneration'

/** Whether a command can stream the text of a reply. */
export const writesText = (command: ApiCommand): boolean => isTurn(command) || command.stream?.selected_by != null

/** Commands whose record can be followed by its stream, or by polling. */
const canFollow = ({ words, method }: ApiCommand): boolean =>
  method === 'GET' && (words.at(-1) === 'get' || (words[0] === 'activity' && words[1] === 'list'))

export const needsConfirmation = ({ words }: ApiCommand): boolean => /^(delete|purge|rotate)\b/.test(words.at(-1)!)

/** Whether a command may make calls whose cost is shown and confirmed before. */
export const mayCost = ({ id }: ApiCommand): boolean => id === 'checkAiProvider'
