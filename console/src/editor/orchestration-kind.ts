import edgeSchema from 'fields:createOrchestration.edges'
import nodeSchema from 'fields:createOrchestration.nodes'
import retrySchema from 'fields:createOrchestration.nodes.retry'
import backoffSchema from 'fields:createOrchestration.nodes.retry.backoff'
import type { Choice } from '#choices.ts'
import type { ObjectSchema, Values } from '#components/schema-form.tsx'
import { visible } from '#components/text.tsx'
import { definitionGraph } from '#graph/definition.ts'
import { useFindings } from '#graph/validation.ts'
import { isObject } from '#json.ts'
import * as strings from '#strings.ts'
import { type Field, fieldOf } from './fields.ts'
import { type Available, entriesOf, type GraphKind, keysOf, nodeOfKey, upstreamOf, wayBetween } from './kind.ts'
import { COMMON_FIELDS, NODE_TYPES, type NodeTypeName, TIMED } from './node-types.ts'

const texts = strings.editor

const KEY = /^[A-Za-z0-9_-]{1,128}$/

/** The graph with which a new orchestration may begin: it runs unchanged. */
const EXAMPLE = {
  nodes: [
    { id: 'price', type: 'transform', expression: { '*': [{ var: 'input.price' }, 0.9] } },
    {
      id: 'large',
      type: 'condition',
      expression: { if: [{ '>': [{ var: 'nodes.price.result' }, 100] }, 'yes', 'no'] },
    },
    { id: 'ask', type: 'human', prompt: 'Accept this price?', options: ['accept', 'refuse'] },
    { id: 'done', type: 'transform', expression: { var: 'nodes.price.result' } },
  ],
  edges: [
    { from: 'price', to: 'large' },
    { from: 'large', to: 'ask', condition: 'yes' },
    { from: 'large', to: 'done', condition: 'no' },
    { from: 'ask', to: 'done', condition: 'accept' },
  ],
  input_schema: { type: 'object', required: ['price'], properties: { price: { type: 'number' } } },
}

/** JSON Schema of a definition, as far as completion follows it. */
const SCHEMA = {
  properties: {
    nodes: {
      items: {
        ...nodeSchema,
        properties: {
          ...nodeSchema.properties,
          retry: { ...retrySchema, properties: { ...retrySchema.properties, backoff: backoffSchema } },
        },
      },
    },
    edges: { items: edgeSchema },
    input_schema: { type: 'object', description: texts.inputSchema },
    state_schema: { type: 'object', description: texts.stateSchema },
  },
}

const schemaOf = (name: string) => {
  const [first, ...rest] = name.split('.')
  const schemas: Record<string, ObjectSchema> = { '': nodeSchema, retry: retrySchema, 'retry.backoff': backoffSchema }
  const parent = rest.length === 0 ? '' : [first, ...rest.slice(0, -1)].join('.')
  return schemas[parent].properties?.[rest.at(-1) ?? first]
}

/** Texts in the results of the branches of an expression. */
function resultsOf(expression: unknown): string[] {
  if (['string', 'number', 'boolean'].includes(typeof expression)) return [String(expression)]
  const branches = isObject(expression) ? expression.if : undefined
  if (Array.isArray(branches))
    return branches.flatMap((branch, index) =>
      index % 2 === 1 || index === branches.length - 1 ? resultsOf(branch) : [],
    )
  return isObject(expression) && !('var' in expression) ? ['true', 'false'] : []
}

/** Returns the labels under which a node may complete. */
function labelsOf(node: Values | undefined): string[] {
  const { type, options, expression, on_error } = node ?? {}
  const own: Record<string, string[]> = {
    condition: resultsOf(expression),
    human: [...(Array.isArray(options) ? options.filter(each => typeof each === 'string') : []), 'expired'],
    webhook: ['expired'],
    approval: ['approved', 'rejected', 'expired'],
    tool: ['approved', 'rejected', 'expired', 'blocked', 'tripwire'],
  }
  return [...new Set([...(own[String(type)] ?? []), ...(on_error === 'route' ? ['failed'] : [])])]
}

/** Returns an expression in which another name of a node is read. */
function reading(value: unknown, before: string, after: string): unknown {
  const read = (path: unknown) =>
    typeof path === 'string'
      ? path.replace(/^((?:state\.)?nodes\.)([^.]+)/, (whole, prefix, name) =>
          name === before ? `${prefix}${after}` : whole,
        )
      : path
  if (Array.isArray(value)) return value.map(each => reading(each, before, after))
  if (!isObject(value)) return value
  return Object.fromEntries(
    Object.entries(value).map(([key, inner]) => {
      if (key !== 'var') return [key, reading(inner, before, after)]
      return [key, Array.isArray(inner) ? [read(inner[0]), ...inner.slice(1)] : read(inner)]
    }),
  )
}

/** Names of the properties of a JSON Schema. */
const propertiesOf = (schema: unknown): string[] =>
  isObject(schema) && isObject(schema.properties) ? Object.keys(schema.properties) : []

/** Fields of the result of a node that are known. */
const resultFields = ({ type, output_schema }: Values): readonly string[] => {
  const own = propertiesOf(output_schema)
  return own.length > 0 ? own : (NODE_TYPES[type as NodeTypeName]?.result ?? [])
}

/** Values that expressions of a field of a node can read. */
function available(definition: Values, node: Values, field: string): Available[] {
  const upstream = upstreamOf(entriesOf(definition, 'edges'), String(node.id))
  const before = entriesOf(definition, 'nodes').filter(({ id }) => id !== node.id && upstream.has(String(id)))
  const state: Available[] = [
    ...propertiesOf(definition.input_schema).map(name => ({ name: `input.${name}`, about: texts.ofInput })),
    { name: 'input', about: texts.wholeInput },
    ...before.flatMap(each => {
      const id = String(each.id)
      const fields = resultFields(each).map(name => ({ name: `nodes.${id}.${name}`, about: texts.ofNode(id) }))
      return [...fields, { name: `nodes.${id}`, about: texts.resultOf(id) }]
    }),
    ...before.flatMap(({ id, state_mapping }) =>
      Object.keys(isObject(state_mapping) ? state_mapping : {}).map(name => ({
        name: name.replace(/^state\./, ''),
        about: texts.writtenBy(String(id)),
      })),
    ),
  ]
  if (field === 'state_mapping')
    return [
      ...resultFields(node).map(name => ({ name: `output.${name}`, about: texts.ofOutput })),
      { name: 'output', about: texts.output },
      ...state.map(({ name, about }) => ({ name: `state.${name}`, about })),
    ]
  if (field !== 'exit_condition') return state
  return [{ name: 'response', about: texts.response }, { name: 'attempt', about: texts.attempt }, ...state]
}

/** Edges without a way back to their source, as long as no loop is on it. */
function connect(definition: Values, from: string, to: string): Values | string {
  const edges = entriesOf(definition, 'edges')
  if (edges.some(edge => edge.from === from && edge.to === to && edge.condition === undefined))
    return texts.connected(visible(from), visible(to))
  const way = wayBetween(edges, to, from)
  const isLoop = way?.some(name => nodeOfKey(orchestrationGraph, definition, name)?.type === 'loop')
  if (way && !isLoop) return texts.cycle([from, ...way].map(name => visible(name)).join(' → '))
  return { from, to }
}

function nodeFields(_definition: Values, { type }: Values): Field[] {
  const own = NODE_TYPES[type as NodeTypeName]?.fields ?? []
  const more = [...COMMON_FIELDS, ...(TIMED.includes(String(type)) ? ['timeout'] : [])]
  // The input is all that some types have.
  const isFirst = (name: string) => name === 'input_mapping' && type !== 'condition' && type !== 'transform'
  return [
    ...own.map(name => fieldOf(name, schemaOf(name))),
    ...more.map(name => fieldOf(name, schemaOf(name), { isMore: !isFirst(name) })),
  ]
}

function edgeFields(definition: Values, edge: Values): Field[] {
  const properties = edgeSchema.properties ?? {}
  const nodes = keysOf(orchestrationGraph, definition).map(value => ({ value, label: visible(value) }))
  const source = nodeOfKey(orchestrationGraph, definition, String(edge.from))
  return [
    fieldOf('condition', properties.condition, { suggestions: labelsOf(source) }),
    fieldOf('from', properties.from, { choices: nodes }),
    fieldOf('to', properties.to, { choices: nodes }),
    fieldOf('activation_group', properties.activation_group, { isMore: true }),
    fieldOf('activation_condition', properties.activation_condition, { isMore: true }),
  ]
}

/** Texts of the values at a path, beyond the schema; records are added by the editor. */
function textsAt(definition: Values, path: readonly (string | number)[], siblings: Values): Choice[] | undefined {
  const [list, index] = path
  const last = path.at(-1)
  const choices = (values: readonly string[]) => values.map(value => ({ value, label: '' }))
  if (list === 'edges' && (last === 'from' || last === 'to')) return choices(keysOf(orchestrationGraph, definition))
  if (list === 'edges' && last === 'condition')
    return choices(labelsOf(nodeOfKey(orchestrationGraph, definition, String(siblings.from))))
  if (list !== 'nodes') return undefined
  if (path.length === 3 && last === 'type')
    return orchestrationGraph.palette.map(({ type, about }) => ({ value: type, label: about }))
  if (last !== 'var') return undefined
  const node = entriesOf(definition, 'nodes')[Number(index)]
  return node && available(definition, node, String(path[2])).map(({ name, about }) => ({ value: name, label: about }))
}

/** Returns the names of the fields of a type. */
function fieldsOfType(type: unknown): string[] | undefined {
  const own = NODE_TYPES[type as NodeTypeName]?.fields
  return own && ['id', 'type', ...own, ...COMMON_FIELDS.map(name => name.split('.')[0]), 'timeout', 'metadata']
}

/** Orchestrations: nodes, and edges with labels. */
export const orchestrationGraph: GraphKind = {
  lists: { nodes: 'nodes', edges: 'edges' },
  key: 'id',
  palette: Object.entries(NODE_TYPES).map(([type, entry]) => ({
    type,
    ...texts.nodeTypes[type as NodeTypeName],
    start: { type, ...('start' in entry ? entry.start : {}) },
  })),
  fields: ['nodes', 'edges', 'input_schema', 'state_schema'],
  example: EXAMPLE,
  schema: SCHEMA,
  keyProblem: key => (KEY.test(key) ? null : texts.keyHelp),
  newKey({ type }, isUsed) {
    for (let count = 1; ; count++) {
      const name = count === 1 ? String(type) : `${type}_${count}`
      if (!isUsed(name)) return name
    }
  },
  draw: definitionGraph,
  connect,
  renamed: (definition, before, after) => ({
    ...definition,
    nodes: Array.isArray(definition.nodes)
      ? definition.nodes.map(node => reading(node, before, after))
      : definition.nodes,
  }),
  nodeFields,
  edgeFields,
  available,
  texts: textsAt,
  keys: ([list, _, ...rest], { type }) => (list === 'nodes' && rest.length === 0 ? fieldsOfType(type) : undefined),
  edgeKey: null,
  useFindings,
}
