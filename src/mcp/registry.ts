import { couldEverAllow, passesAdminGate } from '#core/api/access.ts'
import { type FlatCall, flatSchema, flatten } from '#core/api/flatten.ts'
import { type Operation, operations, toolNameOf } from '#core/api/operation.ts'
import type { Caller } from '#core/iam/caller.ts'

/** Operations as tools. The registry depends only on the operations and is equal in all processes. */

type Json = Record<string, unknown>

/** Tool as presented to clients. */
export type McpTool = {
  name: string
  title: string
  description: string
  inputSchema: Json
  annotations: Json
}

/** Operation as a tool. Its schema takes a millisecond to build and is built on first use. */
export type OperationTool = Readonly<McpTool> & {
  /** Module of its action. */
  module: string
  operation: Operation
}

/** Omitted parameters: results are not streamed. */
export const LEFT_OUT = ['stream']

const STREAMS = ['text/event-stream', 'application/x-ndjson', 'application/octet-stream']

/** Names of fixed tools: an operation with one of these names is prefixed with its module. */
const FIXED_TOOL_NAMES = ['call-tool', 'describe-tools', 'get-doc-page', 'get-docs', 'search-tools']

const nameOf = (operation: Operation): string => {
  const name = toolNameOf(operation.id)
  return FIXED_TOOL_NAMES.includes(name) ? `${moduleOf(operation)}-${name}` : name
}

/** Whether an operation is a tool: it requires a credential, accepts JSON and does not stream. */
const isOffered = ({ gate, mcp, pass, produces = '', answers, body, consumes }: Operation): boolean =>
  mcp &&
  gate !== 'public' &&
  !pass &&
  !(STREAMS.includes(produces) && answers[200] === null) &&
  !(body && !consumes.includes('application/json'))

const moduleOf = ({ action, tag }: Operation): string => action?.split(':')[0] ?? tag.toLowerCase().replaceAll(' ', '-')

const PROJECT = { type: 'string', description: "ID of the project. Default the credential's project." }

function schemaOf(operation: Operation): Json {
  const schema = flatSchema(flatten(operation) as FlatCall, LEFT_OUT) as { properties: Json; required?: string[] }
  if (!('project_id' in schema.properties)) return schema
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

let cachedRegistry: Registry | undefined

function registry(): Registry {
  const all = operations.all()
  if (cachedRegistry?.of !== all) {
    const tools = all
      .filter(isOffered)
      .map(toolOf)
      .sort((a, b) => (a.name < b.name ? -1 : 1))
    const modules = new Set(tools.map(({ module }) => module).sort())
    cachedRegistry = { of: all, tools, byName: new Map(tools.map(tool => [tool.name, tool])), modules }
  }
  return cachedRegistry
}

/** Returns all operation tools, by name. */
export const operationTools = (): readonly OperationTool[] => registry().tools
export const operationTool = (name: string): OperationTool | undefined => registry().byName.get(name)
export const modulesOf = (): ReadonlySet<string> => registry().modules

/** Whether a credential may use an operation anywhere. */
function isUsable(caller: Caller, { gate, action, kind }: Operation): boolean {
  if (action === null) return true
  return gate === 'admin' ? passesAdminGate(caller, action, kind && { kind }) : couldEverAllow(caller, action)
}

/**
 * Returns the tools that a credential may use anywhere; none for a credential without any permission, not even tools
 * that require none.
 */
export function permittedTools(caller: Caller): readonly OperationTool[] {
  const usable = operationTools().filter(({ operation }) => isUsable(caller, operation))
  return usable.some(({ operation }) => operation.action !== null) ? usable : []
}

/** Returns a tool in the form of lists. */
export const presentTool = ({ name, title, description, inputSchema, annotations }: McpTool): McpTool => ({
  name,
  title,
  description,
  inputSchema,
  annotations,
})
