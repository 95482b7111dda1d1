import { Components, type SchemaNode } from '../openapi/components.ts'
import { Examples } from '../openapi/examples.ts'
import {
  answerOf,
  type Content,
  type Description,
  FORM,
  JSON_TYPE,
  NDJSON,
  parametersOf,
  type Route,
  resolve,
  type Schema,
} from './description.ts'
import { pythonOf } from './python.ts'

/**
 * Examples of a call with curl, the clients of TypeScript and Python and the command line, from the flat call and the
 * declared example.
 */

export type CallExamples = { curl: string; typescript: string | null; python: string | null; cli: string | null }

type Json = Record<string, unknown>

/** An argument of a flat call. */
type Argument = { name: string; in: 'path' | 'query' | 'body'; value: unknown; schema: Schema }

let examples: Examples | undefined

/** Values of path parameters that do not follow from their names. */
const PATH_VALUES: Record<string, string> = {
  version: '1',
  step: '1',
  token: 'upt_4c1b0f7e2a9d',
  step_key: 'check',
  link_id: '1',
  queue: 'ingestion.process',
  entry_id: 'audit_01k5p3vd7r9hj2x8m4qcw6tz0e',
  note_id: 'snote_01k5p3vd7r9hj2x8m4qcw6tz0e',
  operation_id: 'form_op_01k5p3vd7r9hj2x8m4qcw6tz0e',
}

/** Parameter of the example where an operation requires one of several optional parameters. */
const REQUIRED_CHOICES: Record<string, string> = {
  listMemories: 'memory_store_id',
  listMemoryEntries: 'memory_store_id',
  readUsageReceipt: 'generation_id',
}

/** Returns the example of a parameter, by its name. */
function parameterExample(name: string, schema: Schema): unknown {
  const node = { type: 'object', properties: { [name]: schema }, required: [name] } as SchemaNode
  examples ??= new Examples(new Components())
  return (examples.sent(node) as Json)[name]
}

/** Name of a file to send as the first of some types. */
const fileFor = (content: Content): string => ('text/csv' in content ? 'returns.csv' : 'returns.md')

const flatNames = ({ operation }: Route): string[] => (operation['x-flat'] ?? []).map(each => each.name)

/** Returns the arguments of the example of a call: path, required query and example of the body. */
function argumentsOf(description: Description, route: Route): Argument[] {
  const { operation } = route
  const parameters = parametersOf(description, operation)
    .filter(each => each.in === 'path' || each.required || each.name === REQUIRED_CHOICES[operation.operationId])
    .filter(each => each.in === 'path' || each.in === 'query')
    .map(
      ({ name, in: part, schema }): Argument => ({
        name,
        in: part as Argument['in'],
        value: (part === 'path' && PATH_VALUES[name]) || parameterExample(name, schema),
        schema,
      }),
    )
  const sent = operation.requestBody?.content ?? {}
  const media = sent[FORM] ?? sent[JSON_TYPE]
  const example = media?.example
  if (typeof example !== 'object' || example === null || Array.isArray(example)) return parameters
  const { properties = {} } = resolve(description, media.schema)
  const names = flatNames(route)
  const fields = Object.entries(example)
    .filter(([field]) => field !== 'file')
    .map(
      ([field, value]): Argument => ({
        name: names.includes(`body_${field}`) ? `body_${field}` : field,
        in: 'body',
        value,
        schema: resolve(description, properties[field] ?? {}),
      }),
    )
  return [...parameters, ...fields]
}

const quote = (text: string): string => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`)

const isFile = ({ operation }: Route): boolean => {
  const content = operation.requestBody?.content
  return content !== undefined && (FORM in content || !(JSON_TYPE in content))
}

function pathWith(path: string, values: readonly Argument[]): string {
  const query = values
    .filter(each => each.in === 'query')
    .map(({ name, value }) => `${name}=${encodeURIComponent(String(value))}`)
  const filled = path.replace(/\{(\w+)\}/g, (_, name) =>
    encodeURIComponent(String(values.find(each => each.in === 'path' && each.name === name)?.value)),
  )
  return query.length > 0 ? `${filled}?${query.join('&')}` : filled
}

/** Whether the successful answer of an operation is a file or lines, which a program stores. */
const isDownload = (content: Content): boolean =>
  Object.keys(content).length > 0 && !(JSON_TYPE in content) && !('text/event-stream' in content)

function curlOf(description: Description, route: Route, values: readonly Argument[], base: string): string {
  const { method, path, operation } = route
  const content = operation.requestBody?.content ?? {}
  const answer = answerOf(description, operation)
  const isStream = 'text/event-stream' in answer && !(JSON_TYPE in answer)
  const parts = [
    `curl ${isStream ? '-N ' : ''}${method === 'GET' ? '' : `-X ${method} `}${quote(base + pathWith(path, values))}`,
  ]
  if (operation.security?.length !== 0) parts.push('-H "Authorization: Bearer $MUSTER_TOKEN"')
  const fields = values.filter(each => each.in === 'body')
  if (FORM in content) {
    const texts = fields.map(({ name, value }) => `-F ${quote(`${name}=${formText(value)}`)}`)
    parts.push(`-F file=@${fileFor(content)}`, ...texts)
  } else if (JSON_TYPE in content)
    parts.push("-H 'Content-Type: application/json'", `-d ${quote(JSON.stringify(content[JSON_TYPE].example))}`)
  else if (operation.requestBody)
    parts.push(`-H 'Content-Type: ${Object.keys(content)[0]}'`, `--data-binary @${fileFor(content)}`)
  if (isDownload(answer)) parts.push('-o answer')
  return parts.join(' \\\n  ')
}

const formText = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value))

const kebab = (name: string): string => name.replaceAll('_', '-')

/** Returns a value of a flag; the command line reads `@x` as a file. */
const flagText = (value: unknown): string => quote(formText(value).replace(/^@/, '@@'))

function flagsOf({ name, value, schema }: Argument): string[] {
  const flag = `--${kebab(name)}`
  if (value === null) return [`--clear ${kebab(name)}`]
  if (schema['x-secret']) return [`${flag} @secret.txt`]
  if (typeof value === 'boolean') return [value ? flag : `--no-${kebab(name)}`]
  const isScalar = (each: unknown) => typeof each !== 'object' || each === null
  if (Array.isArray(value) && value.every(isScalar)) return value.map(each => `${flag} ${flagText(each)}`)
  if (name === 'tags' && !Array.isArray(value) && !isScalar(value))
    return Object.entries(value as Json).map(([key, each]) => `${flag} ${quote(`${key}=${each}`)}`)
  return [`${flag} ${flagText(value)}`]
}

function cliOf(route: Route, values: readonly Argument[], answer: Content): string {
  const words = route.operation['x-command'] as string[]
  const ids = values.filter(each => each.in === 'path').map(({ value }) => quote(String(value)))
  const isFlag = ({ name, in: part }: Argument): boolean =>
    part !== 'body' || isFile(route) || flatNames(route).includes(name)
  const flags = values.filter(each => each.in !== 'path' && isFlag(each)).flatMap(flagsOf)
  const others = values.filter(each => !isFlag(each)).map(({ name, value }) => [name, value])
  if (others.length > 0) flags.push(`--body ${quote(JSON.stringify(Object.fromEntries(others)))}`)
  if (isFile(route)) flags.unshift(`--file ${fileFor(route.operation.requestBody?.content ?? {})}`)
  if (isDownload(answer)) flags.push('--output answer')
  return [['muster', ...words, ...ids].join(' '), ...flags].join(' \\\n  ')
}

const WIDTH = 100

/** Returns a value as TypeScript, over several lines if it is long. */
function literal(value: unknown, indent = ''): string {
  if (typeof value === 'string')
    return `'${JSON.stringify(value).slice(1, -1).replaceAll('\\"', '"').replaceAll("'", "\\'")}'`
  if (value instanceof Code) return value.text
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  const inner = `${indent}  `
  const items = Array.isArray(value)
    ? value.map(each => literal(each, inner))
    : Object.entries(value).map(([key, each]) => {
        const name = /^[A-Za-z_$][\w$]*$/.test(key) ? key : literal(key)
        return each instanceof Code && each.text === key ? key : `${name}: ${literal(each, inner)}`
      })
  const [open, close] = Array.isArray(value) ? ['[', ']'] : ['{ ', ' }']
  const line = `${open}${items.join(', ')}${close}`
  if (items.length === 0) return Array.isArray(value) ? '[]' : '{}'
  if (line.length + indent.length <= WIDTH && !line.includes('\n')) return line
  return `${open.trim()}\n${items.map(each => `${inner}${each},\n`).join('')}${indent}${close.trim()}`
}

/** An expression among the values of an example. */
class Code {
  readonly text: string
  constructor(text: string) {
    this.text = text
  }
}

const camel = (word: string): string => word.replace(/-(\w)/g, (_, letter: string) => letter.toUpperCase())

function typescriptOf(route: Route, values: readonly Argument[], answer: Content): string {
  const { operation } = route
  const content = operation.requestBody?.content ?? {}
  const method = `muster.${(operation['x-command'] as string[]).map(camel).join('.')}`
  const args: Json = Object.fromEntries(values.map(({ name, value }) => [name, value]))
  const lines: string[] = []
  if (isFile(route)) {
    const file = fileFor(content)
    lines.push(`const file = await openAsBlob('${file}')`)
    args.file = new Code('file')
    if (!(FORM in content)) args.content_type = Object.keys(content)[0]
    else args.filename = file
  }
  const call = `${method}(${Object.keys(args).length === 0 ? '' : literal(args)})`
  const isStream = operation['x-stream'] && !operation['x-stream'].selected_by
  if (isStream) lines.push(`for await (const event of ${call}) console.log(event)`)
  else if (operation['x-paged']) lines.push(`for await (const item of ${call}) console.log(item)`)
  else if (Object.keys(answer).length === 0) lines.push(`await ${call}`)
  else lines.push(`const answer = await ${call}`)
  return lines.join('\n')
}

function callInPython(description: Description, route: Route, values: readonly Argument[], answer: Content): string {
  const { operation } = route
  const content = operation.requestBody?.content ?? {}
  const isOpen = Boolean(resolve(description, content[JSON_TYPE]?.schema ?? {}).additionalProperties)
  const selector = operation['x-stream']?.selected_by?.name
  const others = values.filter(
    each => each.name !== selector && (each.in === 'query' || (each.in === 'body' && !isOpen)),
  )
  const file = isFile(route) ? fileFor(content) : undefined
  const isStream = operation['x-stream'] && !operation['x-stream'].selected_by
  const types = Object.keys(answer)
  return pythonOf({
    words: operation['x-command'] as string[],
    path: values.filter(each => each.in === 'path').map(({ value }) => value),
    named: {
      ...(file && !(FORM in content) ? { content_type: Object.keys(content)[0] } : {}),
      ...Object.fromEntries(others.map(({ name, value }) => [name, value])),
      ...(isOpen ? { body: content[JSON_TYPE].example } : {}),
    },
    file,
    answer: isStream
      ? 'stream'
      : operation['x-paged']
        ? 'list'
        : types.length === 0
          ? 'nothing'
          : NDJSON in answer || !(JSON_TYPE in answer)
            ? 'download'
            : 'record',
  })
}

/** Returns the examples of an operation. One without a command has only the request. */
export function examplesOf(description: Description, route: Route, base: string): CallExamples {
  const values = argumentsOf(description, route)
  const answer = answerOf(description, route.operation)
  const isCommand = route.operation['x-command'] !== undefined
  return {
    curl: curlOf(description, route, values, base),
    typescript: isCommand ? typescriptOf(route, values, answer) : null,
    python: isCommand ? callInPython(description, route, values, answer) : null,
    cli: isCommand ? cliOf(route, values, answer) : null,
  }
}
