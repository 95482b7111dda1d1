import {
  type Branch,
  clientRoutes,
  contentOf,
  type DescribedOperation,
  type Description,
  FORM,
  flatOf,
  JSON_TYPE,
  NDJSON,
  parametersOf,
  type Route,
  resolve,
  shapeOf,
  streamOf,
  treeOf,
} from './description.ts'

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

  #functionsOf(route: Route): Made[] {
    const { method, path, operation } = route
    const { operationId, summary, description } = operation
    const name = pascal(operationId)
    const words = operation['x-command']!.map(camel)
    const doc = `/** ${[summary, description].filter(Boolean).join('. ').replaceAll('*/', '* /')} */`
    const content = contentOf(this.#description, operation)
    const shape = shapeOf(this.#description, route)
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
    route: Route,
    shape: object,
    make: (kind: string, types: string, all: object, more?: string) => string,
  ): string {
    const { operation } = route
    const { operationId, 'x-stream': streamed } = operation
    const { events, last, selected_by } = streamed!
    const { resume, cancel, union: name, results } = streamOf(this.#description, this.#routes, route)
    const union = `T.${name}`
    const result =
      results.length > 0 ? `Extract<${union}, { event: ${results.map(literal).join(' | ')} }>['data']` : 'never'
    return make(
      'stream',
      `${pascal(operationId)}Args, ${union}, ${result}`,
      { ...shape, events, last, resume, cancel },
      selected_by ? `, { ${selected_by.name}: true }` : '',
    )
  }
}

const HEAD = '// Generated by npm run build.\n'

/** Returns the generated source files by name. */
export function sourcesOf(description: Description): Record<string, string> {
  const { types, functions } = new Generator(description).all()
  const print = (branch: Branch<Made>, leaf: (made: Made, word: string) => string, depth: string): string =>
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
