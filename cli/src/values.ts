import { readFile } from 'node:fs/promises'
import { exactNumber, parseExactJson } from '@muster/client'
import { type ApiCommand, type CommandField, flagOf } from './commands.ts'
import { UsageError } from './failure.ts'
import { readStdin } from './terminal.ts'

type Args = Record<string, unknown>

const isJsonText = (text: string): boolean => /^\s*[[{"]/.test(text)

const typesOf = ({ type }: Pick<CommandField, 'type'>): string[] => (type === undefined ? [] : [type].flat())

export const isBoolean = (field: Pick<CommandField, 'type'>): boolean => {
  const types = typesOf(field).filter(type => type !== 'null')
  return types.length === 1 && types[0] === 'boolean'
}

/** Whether a flag of the field may be repeated. */
export const isRepeatable = (field: CommandField): boolean =>
  typesOf(field).some(type => type === 'array' || type === 'object')

/** Reads `@file` and `@-`; `@@x` is the text `@x`. */
async function readText(text: string): Promise<{ text: string; file?: string }> {
  if (text.startsWith('@@')) return { text: text.slice(1) }
  if (text === '@-') return { text: (await readStdin()).toString('utf8'), file: '-' }
  if (!text.startsWith('@')) return { text }
  const file = text.slice(1)
  try {
    return { text: await readFile(file, 'utf8'), file }
  } catch (error) {
    throw new UsageError(
      `${file} cannot be read: ${(error as Error).message}`,
      `Write @@${file} for a text that begins with @.`,
    )
  }
}

const JSON_NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/

/** Parses JSON, or YAML of a file with such a name. */
export async function parseDocument(text: string, file?: string): Promise<unknown> {
  if (file && /\.ya?ml$/i.test(file)) {
    const yaml = await import('yaml')
    try {
      const document = yaml.parseDocument(text)
      const [error] = document.errors
      if (error) throw error
      yaml.visit(document, {
        Scalar(key, node) {
          if (key !== 'key' && typeof node.value === 'number' && node.source && JSON_NUMBER.test(node.source))
            node.value = exactNumber(node.source)
        },
      })
      return document.toJS()
    } catch (error) {
      throw new UsageError(`${file}: ${(error as Error).message.trimEnd()}`)
    }
  }
  return parseExactJson(text)
}

async function jsonOf(flag: string, given: string): Promise<unknown> {
  const { text, file } = await readText(given)
  try {
    return await parseDocument(text, file)
  } catch (error) {
    if (error instanceof UsageError) throw error
    throw new UsageError(`${flag}: ${file ? `${file} is` : 'the value is'} no JSON: ${(error as Error).message}`)
  }
}

function scalarOf(flag: string, field: Pick<CommandField, 'type' | 'enum'>, text: string): unknown {
  const types = typesOf(field)
  const value = types.includes('string') || types.length === 0 ? text : numberOf(flag, types, text)
  if (field.enum && !field.enum.includes(value))
    throw new UsageError(`${flag} must be one of ${field.enum.filter(each => each !== null).join(', ')}`)
  return value
}

function numberOf(flag: string, types: string[], text: string): unknown {
  if (types.includes('boolean') && /^(true|false)$/.test(text)) return text === 'true'
  const value = Number(text)
  const isInteger = types.includes('integer') && !types.includes('number')
  if (text.trim() === '' || !Number.isFinite(value) || (isInteger && !Number.isInteger(value)))
    throw new UsageError(`${flag} must be ${isInteger ? 'an integer' : 'a number'}`)
  return JSON_NUMBER.test(text) ? exactNumber(text) : value
}

/** Splits `key=value`. */
function pairOf(flag: string, text: string): [string, string] {
  const at = text.indexOf('=')
  if (at < 1) throw new UsageError(`${flag} must be key=value, JSON, or @file`)
  return [text.slice(0, at), text.slice(at + 1)]
}

/** Returns the value of a field from the texts of its flag. */
export async function fieldValue(flag: string, field: CommandField, given: readonly string[]): Promise<unknown> {
  const types = typesOf(field)
  if (field.secret) return secretOf(given.at(-1)!)
  const isText = types.includes('string')
  if (types.includes('array')) {
    const items: unknown[] = []
    for (const text of given) {
      const isScalar = field.items?.type !== undefined && !typesOf(field.items).includes('object')
      if (/^\s*\[/.test(text) || (text.startsWith('@') && !isScalar)) {
        const value = await jsonOf(flag, text)
        items.push(...(Array.isArray(value) ? value : [value]))
      } else if (isScalar || isText) {
        const texts = field.items?.enum ? text.split(',') : [(await readText(text)).text]
        items.push(...texts.map(each => scalarOf(flag, field.items ?? {}, each)))
      } else items.push(await jsonOf(flag, text))
    }
    // A field that is a text or a list takes one text unchanged.
    return isText && items.length === 1 && given.length === 1 && !/^\s*\[/.test(given[0]) ? items[0] : items
  }
  if (types.includes('object')) {
    const all: Args = {}
    for (const text of given) {
      if (isText && !isJsonText(text)) return textOrDocument(text)
      if (isJsonText(text) || text.startsWith('@')) {
        const value = await jsonOf(flag, text)
        if (given.length === 1) return value
        Object.assign(all, value)
      } else Object.assign(all, Object.fromEntries([pairOf(flag, text)]))
    }
    return all
  }
  const { text, file } = await readText(given.at(-1)!)
  if (types.length === 0) return anyOf(text, file)
  return scalarOf(flag, field, file && isText && types.length <= 2 ? text : text.replace(/\n$/, ''))
}

/** A field that is an object or a text, such as a template: a file is sent as the text that it is. */
async function textOrDocument(given: string): Promise<unknown> {
  const { text, file } = await readText(given)
  return file?.endsWith('.json') ? parseDocument(text, file) : text
}

async function anyOf(text: string, file?: string): Promise<unknown> {
  try {
    return await parseDocument(text, file)
  } catch {
    return text
  }
}

async function secretOf(given: string): Promise<string> {
  if (given.startsWith('env:')) {
    const value = process.env[given.slice(4)]
    if (value === undefined) throw new UsageError(`${given.slice(4)} is not set`)
    return value
  }
  return (await readText(given)).text.replace(/\r?\n$/, '')
}

/** Whether a value of a secret would be visible to other users of the machine. */
export const isVisibleInArgv = (given: string): boolean => !/^(@|env:)/.test(given) || given.startsWith('@@')

/** Reads `--body`. */
export async function readBody(given: string): Promise<Args> {
  const value = await jsonOf('--body', given)
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new UsageError('--body must be an object')
  return value as Args
}

/** Sets one path of an object: `a.b[0]=1`. */
export function setPath(target: Args, assignment: string, { isText = false } = {}): void {
  const [path, text] = pairOf('--set', assignment)
  const keys = [...path.matchAll(/([^.[\]]+)|\[(\d+)\]/g)].map(([, name, index]) => name ?? Number(index))
  if (keys.length === 0 || keys.some(key => key === '__proto__')) throw new UsageError(`--set ${path} is no path`)
  let node: any = target
  for (const [at, key] of keys.slice(0, -1).entries()) {
    if (typeof node[key] !== 'object' || node[key] === null) node[key] = typeof keys[at + 1] === 'number' ? [] : {}
    node = node[key]
  }
  let value: unknown = text
  try {
    if (!isText) value = parseExactJson(text)
  } catch {}
  node[keys.at(-1)!] = value
}

/** Moves the properties of a body to the names of flat arguments. */
export function flatten(command: ApiCommand, body: Args): Args {
  if (command.open) return body
  const names = new Map(
    command.fields
      .filter(each => each.in === 'body')
      .flatMap(({ name }): [string, string][] => [
        [name, name],
        ...(name.startsWith('body_') ? ([[name.slice('body_'.length), name]] as [string, string][]) : []),
      ]),
  )
  return Object.fromEntries(
    Object.entries(body).map(([name, value]) => {
      const found = names.get(name)
      if (found === undefined) throw new UsageError(`${command.words.join(' ')} has no field ${name}`)
      return [found, value]
    }),
  )
}

/** Returns the flags of required fields that have no value. */
export const missingFlags = (command: ApiCommand, args: Args): string[] =>
  command.fields
    .filter(each => each.required && each.in !== 'path' && args[each.name] === undefined)
    .map(each => `--${flagOf(command, each)}`)
