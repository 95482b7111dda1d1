import { type FlatCall, flatSchema, flatten } from '../core/api/flatten.ts'
import { type Operation, operations } from '../core/api/operation.ts'
import { couldEverAllow, passesAdminGate } from '../core/iam/access.ts'
import type { Caller } from '../core/iam/caller.ts'

/** Operations as tools. What is made here follows from the operations alone and is the same in every process. */

type Json = Record<string, unknown>

/** A tool as clients are shown it. */
export type McpTool = {
  name: string
  title: string
  description: string
  inputSchema: Json
  annotations: Json
}

/** An operation as a tool. Its schema takes a millisecond to make, so it is made when it is asked for. */
export type OperationTool = Readonly<McpTool> & {
  /** Module of its action. */
  module: string
  operation: Operation
}

/** A call is answered when it is over: nothing is streamed. */
export const LEFT_OUT = ['stream']

const STREAMS = ['text/event-stream', 'application/x-ndjson', 'application/octet-stream']

/** Names of tools that are no operations: an operation of one of these names has its module before it. */
const TAKEN = ['call-tool', 'describe-tools', 'get-doc-page', 'get-docs', 'search-tools']

const nameOf = (operation: Operation): string => {
  const name = toKebabCase(operation.id)
  return TAKEN.includes(name) ? `${moduleOf(operation)}-${name}` : name
}

/** Takes the credential of a caller and a JSON body, and ends. */
const isOffered = ({ gate, mcp, pass, produces = '', answers, body, consumes }: Operation): boolean =>
  mcp &&
  gate !== 'public' &&
  !pass &&
  !(STREAMS.includes(produces) && answers[200] === null) &&
  !(body && !consumes.includes('application/json'))

export const toKebabCase = (id: string): string =>
  id.replace(/[A-Z]/g, letter => `-${letter.toLowerCase()}`).replace(/^-/, '')

const moduleOf = ({ action, tag }: Operation): string => action?.split(':')[0] ?? tag.toLowerCase().replaceAll(' ', '-')

const PROJECT = { type: 'string', description: "Project; defaults to the credential's project" }

function schemaOf(operation: Operation): Json {
  const schema = flatSchema(flatten(operation) as FlatCall, LEFT_OUT) as { properties: Json; required?: string[] }
  // Of an item it is the item that is asked for.
  if (!('project_id' in schema.properties) || operation.path.includes('{project_id}')) return schema
  const { required = [], properties, ...rest } = schema
  const others = required.filter(name => name !== 'project_id')
  return {
    ...rest,
    properties: { ...properties, project_id: PROJECT },
    ...(others.length > 0 ? { required: others } : {}),
  }
}

function toolOf(operation: Operation): OperationTool {
  const { method, summary, description } = operation
  let schema: Json | undefined
  return {
    name: nameOf(operation),
    title: summary,
    description: description ? `${summary}. ${description}` : summary,
    get inputSchema() {
      schema ??= schemaOf(operation)
      return schema
    },
    annotations: {
      title: summary,
      readOnlyHint: method === 'get',
      destructiveHint: method === 'delete',
      idempotentHint: ['get', 'put', 'delete'].includes(method),
    },
    module: moduleOf(operation),
    operation,
  }
}

type Registry = {
  of: readonly Operation[]
  tools: readonly OperationTool[]
  byName: ReadonlyMap<string, OperationTool>
  modules: ReadonlySet<string>
}

let made: Registry | undefined

function registry(): Registry {
  const all = operations.all()
  if (made?.of !== all) {
    const tools = all
      .filter(isOffered)
      .map(toolOf)
      .sort((a, b) => (a.name < b.name ? -1 : 1))
    const modules = new Set(tools.map(({ module }) => module).sort())
    made = { of: all, tools, byName: new Map(tools.map(tool => [tool.name, tool])), modules }
  }
  return made
}

/** Every operation that is a tool, by name. */
export const operationTools = (): readonly OperationTool[] => registry().tools
export const operationTool = (name: string): OperationTool | undefined => registry().byName.get(name)
export const modulesOf = (): ReadonlySet<string> => registry().modules

/** Whether a credential can use an operation anywhere. */
function isUsable(caller: Caller, { gate, action, kind }: Operation): boolean {
  if (action === null) return true
  return gate === 'admin' ? passesAdminGate(caller, action, kind && { kind }) : couldEverAllow(caller, action)
}

/** The tools whose action a credential can use somewhere. Without any right, those that ask for none are not shown either. */
export function permittedTools(caller: Caller): readonly OperationTool[] {
  const usable = operationTools().filter(({ operation }) => isUsable(caller, operation))
  return usable.some(({ operation }) => operation.action !== null) ? usable : []
}

/** A tool as a list shows it. */
export const visibleTools = ({ name, title, description, inputSchema, annotations }: McpTool): McpTool => ({
  name,
  title,
  description,
  inputSchema,
  annotations,
})
