import fs from 'node:fs'
import path from 'node:path'
import '#config.ts'
import { settingRows } from '#core/base/declared-settings.ts'
import { declaredNames, loadModules } from '#core/modules/module.ts'
import { modules } from '#modules.ts'
import verbs from '#operator/verbs.json' with { type: 'json' }

/**
 * The interface of a release as lines of text, each of which is one thing that a caller or an operator can notice, and the
 * differences of two releases. `node scripts/interface.ts` prints the interface of this checkout.
 */

type Schema = {
  $ref?: string
  properties?: Record<string, Schema>
  items?: Schema
  allOf?: Schema[]
  anyOf?: Schema[]
  oneOf?: Schema[]
}
type Parameter = { $ref?: string; name?: string; in?: string }
type Content = { $ref?: string; content?: Record<string, { schema?: Schema }> }
type Operation = { parameters?: Parameter[]; requestBody?: Content; responses?: Record<string, Content> }
export type Document = {
  paths: Record<string, Record<string, Operation>>
  components: {
    schemas: Record<string, Schema>
    parameters: Record<string, Parameter>
    responses?: Record<string, Content>
  }
}

/** What a release has besides its description. */
export type Names = {
  errors: string[]
  events: string[]
  settings: { name: string; default: string | null }[]
  commands: string[]
}

const nameIn = (reference: string): string => reference.split('/').at(-1) as string

/** Returns the names of the fields of a schema; for a page, the fields of its items. */
function fieldsOf(schema: Schema | undefined, document: Document): string[] {
  if (!schema) return []
  const { $ref, properties = {}, allOf = [], anyOf = [], oneOf = [] } = schema
  if ($ref) return fieldsOf(document.components.schemas[nameIn($ref)], document)
  const within = [...allOf, ...anyOf, ...oneOf, properties.data?.items].flatMap(each => fieldsOf(each, document))
  return [...Object.keys(properties), ...within]
}

function contentOf(at: Content, document: Document): Schema | undefined {
  const { content } = at.$ref ? (document.components.responses?.[nameIn(at.$ref)] ?? {}) : at
  return content?.['application/json']?.schema
}

/** Returns the lines of an operation. */
function operationLines(name: string, operation: Operation, document: Document): string[] {
  const parameters = (operation.parameters ?? []).map(each =>
    each.$ref ? document.components.parameters[nameIn(each.$ref)] : each,
  )
  const answers = Object.entries(operation.responses ?? {}).filter(([status]) => status.startsWith('2'))
  return [
    `operation ${name}`,
    ...parameters.filter(each => each.in !== 'path').map(each => `parameter ${name} ${each.name}`),
    ...fieldsOf(contentOf(operation.requestBody ?? {}, document), document).map(field => `body ${name} ${field}`),
    ...answers.flatMap(([, answer]) =>
      fieldsOf(contentOf(answer, document), document).map(field => `answer ${name} ${field}`),
    ),
  ]
}

/** Returns the sorted lines of an interface. */
export function interfaceLines(document: Document, { errors, events, settings, commands }: Names): string[] {
  const operations = Object.entries(document.paths).flatMap(([at, methods]) =>
    Object.entries(methods).flatMap(([method, operation]) =>
      operationLines(`${method.toUpperCase()} ${at.replace('/api/v1', '')}`, operation, document),
    ),
  )
  const lines = [
    ...operations,
    ...errors.map(name => `error ${name}`),
    ...events.map(name => `event ${name}`),
    ...settings.map(each => `setting ${each.name} ${each.default ?? ''}`.trimEnd()),
    ...commands.map(name => `command ${name}`),
  ]
  return [...new Set(lines)].sort()
}

/** What the notes of a release must contain for a line that came or went. */
function mentionOf(line: string): string {
  const [kind, ...words] = line.split(' ')
  if (kind === 'command') return words.join(' ')
  if (kind === 'operation') return words[1]
  return words[kind === 'parameter' || kind === 'body' || kind === 'answer' ? 2 : 0]
}

const isMentioned = (line: string, notes: string): boolean => {
  const mention = mentionOf(line)
  const isWord = new RegExp(`(?<![\\w-])${mention.replaceAll('.', '\\.')}(?![\\w-])`)
  if (!line.startsWith('operation ')) return isWord.test(notes)
  // An operation is mentioned with its path or the start of it; the names of parameters do not matter.
  const withoutNames = (text: string) => text.replaceAll(/\{\w+\}/g, '{}')
  const parts = withoutNames(mention).split('/').slice(1)
  return parts.some((_, index) => withoutNames(notes).includes(`/${parts.slice(0, index + 1).join('/')}\``))
}

/** Returns the lines that only one of two interfaces has, with a sign. The parts of a new or removed operation are left out. */
export function differences(before: readonly string[], after: readonly string[]): string[] {
  const signed = [
    ...after.filter(line => !before.includes(line)).map(line => `+ ${line}`),
    ...before.filter(line => !after.includes(line)).map(line => `- ${line}`),
  ]
  const whole = signed.filter(line => line.slice(2).startsWith('operation ')).map(line => line.slice(12))
  const isPart = (line: string) =>
    /^. (parameter|body|answer) /.test(line) && whole.includes(line.split(' ').slice(2, 4).join(' '))
  return signed.filter(line => !isPart(line))
}

/** Returns the differences that the notes of a release do not mention. */
export const unmentioned = (before: readonly string[], after: readonly string[], notes: string): string[] =>
  differences(before, after).filter(line => !isMentioned(line.slice(2), notes))

/** Returns the interface of this checkout, which must be built. */
export function currentInterface(): string[] {
  const file = path.resolve(import.meta.dirname, '../client/openapi.json')
  loadModules(modules)
  const { errors, events } = declaredNames()
  return interfaceLines(JSON.parse(fs.readFileSync(file, 'utf8')), {
    errors: [...errors],
    events: [...events],
    settings: settingRows(),
    commands: Object.keys(verbs),
  })
}

if (process.argv[1] === import.meta.filename) console.log(currentInterface().join('\n'))
