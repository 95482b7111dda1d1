import {
  clientRoutes,
  contentOf,
  type DescribedOperation,
  type Description,
  EVENTS,
  FORM,
  flatOf,
  JSON_TYPE,
  parametersOf,
  type Route,
  resolve,
} from './description.ts'

const NDJSON = 'application/x-ndjson'

const pascal = (id: string): string => id[0].toUpperCase() + id.slice(1)
const camel = (word: string): string => word.replace(/-(\w)/g, (_, letter: string) => letter.toUpperCase())

/** Type of the answers of an operation. The generator has a shorter name for it, which a schema may have too. */
const answerOf = (id: string): string => `Of<T.${pascal(id)}Responses>`

/** Code that makes an object, without the fields that are undefined. */
const literal = (value: unknown): string => {
  if (Array.isArray(value)) return `[${value.map(literal).join(', ')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  const fields = Object.entries(value).filter(([, each]) => each !== undefined)
  return `{ ${fields.map(([name, each]) => `${name}: ${literal(each)}`).join(', ')} }`
}

/** Functions of one operation: its name, types and code. */
type Made = { name: string; words: readonly string[]; doc: string; code: string }

/** Generates the functions of all operations. */
class Generator {
  readonly #description: Description
  readonly #routes: Map<string, Route>

  constructor(description: Description) {
    this.#description = description
    this.#routes = new Map(clientRoutes(description).map(route => [route.operation.operationId, route]))
  }

  all(): { types: string[]; functions: Made[] } {
    const types: string[] = []
    const functions: Made[] = []
    for (const route of this.#routes.values()) {
      types.push(this.#argumentsOf(route))
      functions.push(...this.#functionsOf(route))
    }
    return { types, functions }
  }

  #argumentsOf({ operation }: Route): string {
    const { operationId, requestBody } = operation
    const name = pascal(operationId)
    const parts = [...new Set(parametersOf(this.#description, operation).map(each => each.in))]
      .filter(part => part !== 'header')
      .map(part => `NonNullable<T.${name}Data['${part}']>`)
    const type = `T.${name}Data['body']`
    const clashes = flatOf(this.#description, operation).filter(each => each.name.startsWith('body_'))
    const fields = clashes.map(each => each.name.slice('body_'.length))
    if (requestBody?.content[FORM]) parts.push(`Omit<${type}, 'file'> & { file: FileInput }`)
    else if (requestBody && !requestBody.content[JSON_TYPE])
      parts.push(`{ file: FileInput; content_type: ${Object.keys(requestBody.content).map(literal).join(' | ')} }`)
    else if (requestBody && this.#hasFields(operation)) {
      const whole = requestBody.required ? type : `Partial<NonNullable<${type}>>`
      parts.push(fields.length > 0 ? `Omit<${whole}, ${fields.map(literal).join(' | ')}>` : whole)
      for (const field of fields) parts.push(`{ body_${field}?: NonNullable<${type}>['${field}'] }`)
    }
    return `export type ${name}Args = ${parts.join(' & ') || '{}'}`
  }

  /** Whether a JSON body has fields other than the selector of a stream. */
  #hasFields({ requestBody, 'x-stream': stream }: DescribedOperation): boolean {
    const { properties } = resolve(this.#description, requestBody!.content[JSON_TYPE].schema)
    return !properties || Object.keys(properties).some(name => name !== stream?.selected_by?.name)
  }

  #shapeOf({ method, operation }: Route): Record<string, unknown> {
    const { requestBody, security } = operation
    const flat = flatOf(this.#description, operation)
    const query = flat.filter(each => each.in === 'query').map(each => each.name)
    const isBodyless = ['GET', 'DELETE'].includes(method)
    const fileBody = requestBody?.content[FORM]
      ? 'form'
      : requestBody && !requestBody.content[JSON_TYPE]
        ? 'file'
        : null
    const body =
      fileBody ?? (!requestBody ? (isBodyless ? undefined : 'none') : requestBody.required ? undefined : 'optional')
    const form = resolve(this.#description, requestBody?.content[FORM]?.schema ?? {})
    const takesProject =
      flat.some(each => each.name === 'project_id' && each.in !== 'path') || form.properties?.project_id
    return {
      action: operation['x-iam-action'] ?? undefined,
      body,
      query: requestBody && query.length > 0 ? query : undefined,
      // Not for changes: there it would change the record.
      project: ['GET', 'POST'].includes(method) && takesProject ? true : undefined,
      keyed: method === 'POST' && security?.length === 0 ? false : undefined,
    }
  }

  #functionsOf(route: Route): Made[] {
    const { method, path, operation } = route
    const { operationId, summary, description } = operation
    const name = pascal(operationId)
    const words = operation['x-command']!.map(camel)
    const doc = `/** ${[summary, description].filter(Boolean).join('. ').replaceAll('*/', '* /')} */`
    const content = contentOf(this.#description, operation)
    const shape = this.#shapeOf(route)
    const target = JSON.stringify(`${method} ${path}`)
    const make = (kind: string, types: string, all: object, more = '') => {
      const text = literal(all)
      return `/*@__PURE__*/ ${kind}<${types}>(${target}${text === '{  }' && !more ? '' : `, ${text}`}${more})`
    }
    const args = `${name}Args`
    const answer = answerOf(operationId)
    const one = (code: string): Made => ({ name: operationId, words, doc, code })
    const streamed = operation['x-stream']
    if (streamed) {
      const code = this.#streamCode(route, shape, make)
      if (!streamed.selected_by) return [one(code)]
      const streaming = {
        name: `${operationId}Stream`,
        words: [...words.slice(0, -1), `${words.at(-1)}Stream`],
        doc,
        code,
      }
      return [one(this.#workCode(operation, { ...shape, streams: true }, make)), streaming]
    }
    if (operation['x-wait']) return [one(this.#workCode(operation, shape, make))]
    if (operation['x-paged']) return [one(make('list', `${args}, ${answer}`, shape))]
    const types = Object.keys(content)
    if (types.includes(NDJSON)) return [one(make('download', `${args}, Exclude<${answer}, string>`, shape))]
    if (types.length > 0 && !types.includes(JSON_TYPE)) return [one(make('download', args, shape))]
    return [one(make('call', `${args}, ${answer}`, shape))]
  }

  #workCode(operation: DescribedOperation, shape: object, make: (kind: string, types: string, all: object) => string) {
    const { operationId, 'x-wait': wait } = operation
    const name = pascal(operationId)
    const types = `${name}Args, ${answerOf(operationId)}`
    if (!wait) return make('call', types, shape)
    const { path } = this.#routes.get(wait.poll)!
    const { running, done, failed, paused } = wait
    return make('work', `${types}, ${answerOf(wait.poll)}`, {
      ...shape,
      wait: { poll: path, running, done, failed, paused },
    })
  }

  #streamCode(
    { path, operation }: Route,
    shape: object,
    make: (kind: string, types: string, all: object, more?: string) => string,
  ): string {
    const { operationId, 'x-stream': streamed } = operation
    const { events, last, resume, selected_by } = streamed!
    const resumed = resume === null ? null : this.#routes.get(resume)!.path
    const cancel = `${(resumed ?? path).replace(/\/stream$/, '')}/cancel`
    const isCancelled = [...this.#routes.values()].some(each => each.method === 'POST' && each.path === cancel)
    const { $ref } = contentOf(this.#description, operation)[EVENTS].schema
    const union = `T.${$ref!.split('/').at(-1)}`
    const results = last.filter(event => event !== 'error')
    const result =
      results.length > 0 ? `Extract<${union}, { event: ${results.map(literal).join(' | ')} }>['data']` : 'never'
    return make(
      'stream',
      `${pascal(operationId)}Args, ${union}, ${result}`,
      { ...shape, events, last, resume: resumed ?? undefined, cancel: isCancelled ? cancel : undefined },
      selected_by ? `, { ${selected_by.name}: true }` : '',
    )
  }
}

type Branch = Map<string, Branch | Made>

/** Returns the functions as a tree by the words of their commands. */
function treeOf(functions: readonly Made[]): Branch {
  const tree: Branch = new Map()
  for (const made of functions) {
    const branch = made.words.slice(0, -1).reduce((node, word) => {
      if (!node.has(word)) node.set(word, new Map())
      return node.get(word) as Branch
    }, tree)
    const last = made.words.at(-1)!
    if (branch.has(last)) throw new Error(`two methods have the name ${made.words.join('.')}`)
    branch.set(last, made)
  }
  return tree
}

const HEAD = '// Generated by npm run build.\n'

/** Returns the generated source files by name. */
export function sourcesOf(description: Description): Record<string, string> {
  const { types, functions } = new Generator(description).all()
  const print = (branch: Branch, leaf: (made: Made, word: string) => string, depth: string): string =>
    [...branch]
      .map(([word, entry]) =>
        entry instanceof Map
          ? `${depth}${word}: {\n${print(entry, leaf, `${depth}  `)}${depth}}${leaf === asType ? '' : ','}\n`
          : `${depth}${leaf(entry, word)}\n`,
      )
      .join('')
  const asType = ({ name, doc }: Made, word: string) => `${doc}\n${word}: Method<typeof o.${name}>`
  const asValue = ({ name }: Made, word: string) => `${word}: o.${name},`
  const tree = treeOf(functions)
  return {
    'operations.ts': `${HEAD}import type { FileInput } from '../form.ts'
import { call, download, list, stream, work } from '../operation.ts'
import type * as T from './types.gen.ts'

type Of<Responses> = Responses[keyof Responses]

${types.join('\n')}

${functions.map(({ name, doc, code }) => `${doc}\nexport const ${name} = ${code}`).join('\n')}
`,
    'modules.ts': `${HEAD}import type { Method } from '../operation.ts'
import * as o from './operations.ts'

export interface Modules {
${print(tree, asType, '  ')}}

export const modules = {
${print(tree, asValue, '  ')}}
`,
    'codes.ts': `${HEAD}export type ErrorCode =\n${Object.keys(description['x-error-codes'])
      .sort()
      .map(code => `  | '${code}'`)
      .join('\n')}\n`,
    'version.ts': `${HEAD}export const VERSION = ${JSON.stringify(description.info.version)}\n`,
  }
}
