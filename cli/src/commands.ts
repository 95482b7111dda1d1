import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { Command, CommandField } from '../../client/build/commands.ts'
import { Failure } from './failure.ts'

export type { Command, CommandField }

/** A command whose descriptions of stream and wait are typed. */
export type ApiCommand = Omit<Command, 'stream' | 'wait'> & {
  stream?: { events: string[]; last: string[]; resume: string | null; selected_by: { in: string; name: string } | null }
  wait?: { parameter: string; done: string[]; failed: string[]; paused: string[]; poll: string }
}

/** Commands of a version of the service. */
export type CommandTable = {
  version: string
  commands: ApiCommand[]
  /** Whether the table is of the server of a profile, not of this version. */
  isSynced?: boolean
}

/** Returns the commands of a file, by default of this version. */
export function loadCommands(file?: string): CommandTable {
  const bundled = fileURLToPath(new URL('../../client/commands.json', import.meta.url))
  const path = file && existsSync(file) ? file : bundled
  try {
    return { ...JSON.parse(readFileSync(path, 'utf8')), isSynced: path !== bundled }
  } catch {
    throw new Failure('the commands are not built: run npm run build')
  }
}

/** Returns the command that the arguments start with, and how many words it has. */
export function findCommand(table: CommandTable, args: readonly string[]): ApiCommand | undefined {
  const matches = table.commands.filter(({ words }) => words.every((word, index) => args[index] === word))
  return matches.sort((a, b) => b.words.length - a.words.length)[0]
}

/** Returns the commands below some words. */
export const commandsBelow = ({ commands }: CommandTable, words: readonly string[]): ApiCommand[] =>
  commands.filter(each => words.every((word, index) => each.words[index] === word))

export const commandById = ({ commands }: CommandTable, id: string): ApiCommand | undefined =>
  commands.find(each => each.id === id)

const kebab = (name: string): string => name.replaceAll('_', '-')

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
    ...(needsConfirmation(command) ? ['yes'] : []),
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

export const hasJsonBody = ({ method, consumes, fields, open }: ApiCommand): boolean =>
  method !== 'GET' && !consumes && (open === true || fields.some(each => each.in === 'body'))

export const isDownload = ({ produces, stream }: ApiCommand): boolean => produces !== undefined && !stream

/** Whether a command starts or resumes a turn of an agent. */
export const isTurn = ({ wait }: ApiCommand): boolean => wait?.poll === 'getGeneration'

/** Whether a command can stream the text of a reply. */
export const writesText = (command: ApiCommand): boolean => isTurn(command) || command.stream?.selected_by != null

/** Commands whose record can be followed by its stream, or by polling. */
export const canFollow = ({ words, method }: ApiCommand): boolean =>
  method === 'GET' && (words.at(-1) === 'get' || (words[0] === 'activity' && words[1] === 'list'))

export const needsConfirmation = ({ words }: ApiCommand): boolean => /^(delete|purge|rotate)\b/.test(words.at(-1)!)
