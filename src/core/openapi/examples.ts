import { kinds, toPascalCase } from '../api/kind.ts'
import type { Components, SchemaNode } from './components.ts'
import { referencedKind } from './referenced-kind.ts'

/**
 * Examples of bodies, generated from schemas: the declared example of a schema or field (`.meta({ example })`), otherwise a
 * value derived from its name and type. All values belong to one fictitious project, the support desk of a shop.
 */

/** Suffix of all example ids; each kind has one id. */
const SUFFIX = '01k5p3vd7r9hj2x8m4qcw6tz0e'
const TIME = '2026-03-02T09:30:00.000Z'

const VALUES: Record<string, unknown> = {
  name: 'Support desk',
  description: 'Answers customers of the shop',
  title: 'Support desk',
  label: 'spring release',
  email: 'ada@shop.example',
  username: 'ada',
  password: 'correct-horse-battery',
  url: 'https://shop.example/hooks/muster',
  path: '/help/returns.md',
  filename: 'returns.md',
  mime_type: 'text/markdown',
  content_type: 'text/markdown',
  content: 'Orders can be returned within 30 days.',
  text: 'Orders can be returned within 30 days.',
  query: 'How long may I return an order?',
  instructions: 'Answer briefly, from the help pages.',
  message: 'Where is my order 1042?',
  prompt: 'May this order be refunded?',
  reason: 'Requested by the customer',
  comment: 'Called the customer back',
  summary: 'Order 1042 is late',
  model: 'gpt-5-mini',
  provider: 'openai',
  role: 'user',
  event: 'generations.completed',
  event_type: 'generations.completed',
  timezone: 'Europe/Berlin',
  cron: '0 9 * * 1',
  currency: 'USD',
  code: 'RESOURCE_NOT_FOUND',
  action: 'agents:GetAgent',
  language: 'en',
  resource: '*',
  state: 'open',
  to: 'done',
  from: 'open',
  key: 'answer',
  token: 'upt_4c1b0f7e2a9d',
  secret: 'whsec_5f0c2d9b1e7a',
  hint: 'Check the request.',
}

/** Fields that are null in a normal record. */
const NULL_BY_DEFAULT =
  /^(error|last_error|failure)$|_redacted_|^(deleted|archived|cancelled|expired|invalidated|superseded)_at$/

export const exampleId = (prefix: string): string => `${prefix}_${SUFFIX}`

const hasBranches = (schema: SchemaNode): SchemaNode[] | null =>
  (schema.anyOf as SchemaNode[] | undefined) ?? (schema.oneOf as SchemaNode[] | undefined) ?? null

const isNull = (schema: SchemaNode): boolean => schema.type === 'null'

type Place = {
  form: 'sent' | 'answered'
  /** Name of the field. */
  name: string
  /** Kind of the record. */
  owner: string
  depth: number
}

/** Depth limit, which only recursive schemas reach. */
const MAX_DEPTH = 12

/** Optional fields that are omitted in a normal response. */
const OMITTED_FIELDS = ['warnings']

export class Examples {
  readonly #components: Components
  /** Id prefixes by kind, longest names first. */
  readonly #prefixes: [string, string][]

  constructor(components: Components) {
    this.#components = components
    this.#prefixes = kinds
      .all()
      .map(({ name, prefix }): [string, string] => [name, prefix])
      .sort(([a], [b]) => b.length - a.length)
  }

  /**
   * Returns an example of an input: the required fields and the fields with a declared example; if there are none, the first
   * field.
   */
  sent(schema: SchemaNode): unknown {
    return this.#of(schema, { form: 'sent', name: '', owner: '', depth: 0 })
  }

  /** Returns an example of an output, with all fields. `owner` is the kind of the record. */
  answered(schema: SchemaNode, owner = ''): unknown {
    return this.#of(schema, { form: 'answered', name: '', owner, depth: 0 })
  }

  #of(schema: SchemaNode, at: Place): unknown {
    const { $ref } = schema
    if (typeof $ref === 'string') {
      const { example = schema.example } = schema
      const component = $ref.slice($ref.lastIndexOf('/') + 1)
      const target = this.#components.resolve({ $ref })
      const owner = this.#kindNamed(component) ?? at.owner
      return this.#of(example === undefined ? target : { ...target, example }, { ...at, owner })
    }
    const declared = schema.example
    const isObject = schema.type === 'object' || schema.properties !== undefined
    if (declared !== undefined && !(isObject && schema.properties)) return declared
    if (schema.const !== undefined) return schema.const
    if (Array.isArray(schema.enum)) return schema.enum[0]
    const branches = hasBranches(schema)
    if (branches && !schema.properties) {
      if (branches.some(isNull) && this.#isLeftNull(branches, at)) return null
      const branch = branches.find(each => !isNull(each)) ?? branches[0]
      return this.#of(branch, at)
    }
    if (Array.isArray(schema.allOf)) {
      const parts = (schema.allOf as SchemaNode[]).map(part => this.#of(part, at))
      return parts.length === 1 ? parts[0] : Object.assign({}, ...parts)
    }
    const types = [schema.type ?? []].flat() as string[]
    if (types.includes('null') && this.#isLeftNull([schema], at)) return null
    const type = types.find(each => each !== 'null') ?? types[0]
    if (isObject) return this.#object(schema, at)
    if (type === 'array') return this.#array(schema, at)
    if (type === 'string') return this.#text(schema, at)
    if (type === 'integer' || type === 'number') return number(schema, at.name)
    if (type === 'boolean') return schema.default ?? true
    if (type === 'null') return null
    return VALUES[at.name] ?? {}
  }

  #object(schema: SchemaNode, at: Place): unknown {
    const properties = (schema.properties ?? {}) as Record<string, SchemaNode>
    const required = (schema.required ?? []) as string[]
    const declared = (schema.example ?? {}) as SchemaNode
    const names = Object.keys(properties)
    if (names.length === 0) return declared
    const isIncluded = (name: string): boolean => {
      if (required.includes(name) || name in declared) return true
      if (at.form === 'answered') return at.depth < MAX_DEPTH && !OMITTED_FIELDS.includes(name)
      return schema.example === undefined && this.#hasExample(properties[name])
    }
    const included = names.filter(isIncluded)
    const isEmptyBody = at.form === 'sent' && at.depth === 0 && included.length === 0
    const first = isEmptyBody ? names.filter(name => name !== 'project_id').slice(0, 1) : []
    return Object.fromEntries(
      [...included, ...first].map(name => [
        name,
        name in declared ? declared[name] : this.#of(properties[name], { ...at, name, depth: at.depth + 1 }),
      ]),
    )
  }

  /** Whether a nullable field is null in an output: fields in NULL_BY_DEFAULT, and non-scalar fields without an example. */
  #isLeftNull(branches: SchemaNode[], { form, name }: Place): boolean {
    if (form === 'sent') return false
    const isScalar = branches.some(each => {
      const { type, enum: values, const: value } = this.#components.resolve(each)
      const types = [type ?? []].flat()
      return (
        values !== undefined ||
        value !== undefined ||
        types.some(t => !['object', 'array', 'null'].includes(t as string))
      )
    })
    return NULL_BY_DEFAULT.test(name) || (!isScalar && !branches.some(each => this.#hasExample(each)))
  }

  #hasExample(schema: SchemaNode): boolean {
    return (
      schema.example !== undefined ||
      (hasBranches(schema) ?? []).some(each => this.#hasExample(each)) ||
      (typeof schema.$ref === 'string' && this.#components.resolve(schema).example !== undefined)
    )
  }

  #array(schema: SchemaNode, at: Place): unknown {
    if (at.depth >= MAX_DEPTH) return []
    const items = (schema.items ?? {}) as SchemaNode
    const length = Math.max(1, Number(schema.minItems ?? 1))
    return Array.from({ length }, () =>
      this.#of(items, { ...at, name: at.name.replace(/s$/, ''), depth: at.depth + 1 }),
    )
  }

  #text(schema: SchemaNode, { name, owner }: Place): unknown {
    if (typeof schema.default === 'string') return schema.default
    if (schema.format === 'date-time' || /_(at|until)$/.test(name) || name === 'time') return TIME
    if (schema.format === 'date') return TIME.slice(0, 10)
    if (schema.format === 'email') return VALUES.email
    if (schema.format === 'uri' || /(^|_)url$/.test(name)) return VALUES.url
    if (schema.contentEncoding === 'base64') return 'T3JkZXJz'
    const id = this.#idNamed(name, owner)
    if (id) return id
    const text = String(VALUES[name] ?? name.replaceAll('_', ' ')) || 'text'
    const minLength = Number(schema.minLength ?? 0)
    return text.slice(0, Number(schema.maxLength ?? text.length)).padEnd(minLength, '.')
  }

  /** Returns the example id of a field by its name: `agent_id`, `default_agent_id`; `id` is the id of the record. */
  #idNamed(name: string, owner: string): string | null {
    const field = name === 'id' ? `${owner}_id` : name
    if (!field.endsWith('_id')) return null
    const similar = () => this.#prefixes.find(([each]) => each.endsWith(`_${field.slice(0, -3)}`))?.[1]
    return exampleId(referencedKind(field)?.prefix ?? similar() ?? 'item')
  }

  /** Returns the kind of a component by its name: `AgentWithWarnings` is an agent. */
  #kindNamed(component: string): string | null {
    return this.#prefixes.find(([name]) => component.startsWith(toPascalCase(name)))?.[0] ?? null
  }
}

function number(schema: SchemaNode, name: string): unknown {
  if (typeof schema.default === 'number') return schema.default
  const min = Number(schema.minimum ?? Number(schema.exclusiveMinimum ?? -1) + 1)
  const max = Number(schema.maximum ?? schema.exclusiveMaximum ?? Number.POSITIVE_INFINITY)
  const preferred = name === 'offset' ? 0 : name === 'limit' ? 50 : 1
  return Math.min(Math.max(preferred, min), max)
}
