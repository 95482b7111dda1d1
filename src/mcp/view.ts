import { raiseInvalid } from '#core/base/errors.ts'
import type { Caller } from '#core/iam/caller.ts'
import { modulesOf, type OperationTool, operationTools, permittedTools } from './registry.ts'

/** Selection of tools and resources by the query of /mcp. */
export type View = {
  /** Whether all operations are listed. */
  all: boolean
  /** Modules whose tools are listed and callable; null for all. */
  modules: readonly string[] | null
  /** Whether only read operations are listed and callable. */
  readOnly: boolean
  /** Whether tools that the credential may not use anywhere are omitted from lists. */
  permitted: boolean
  /** Project whose resources are listed. */
  project: string | null
}

const queryText = (query: Record<string, unknown>, name: string): string | undefined => {
  const value = query[name]
  if (value === undefined || typeof value === 'string') return value
  return raiseInvalid({ code: 'INVALID_VALUE', path: name, message: 'must be given once' })
}

const queryFlag = (query: Record<string, unknown>, name: string): boolean => {
  const value = queryText(query, name)
  if (value === undefined || value === 'false') return false
  return value === 'true' || raiseInvalid({ code: 'INVALID_VALUE', path: name, message: 'must be true or false' })
}

/** Parses the query of /mcp. @throws VALIDATION_FAILED */
export function viewOf(query: Record<string, unknown>): View {
  const tools = queryText(query, 'tools')
  if (tools !== undefined && tools !== 'all')
    raiseInvalid({ code: 'INVALID_VALUE', path: 'tools', message: 'must be all' })
  const modules = queryText(query, 'modules')?.split(',') ?? null
  const unknown = modules?.find(module => !modulesOf().has(module))
  if (unknown !== undefined)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'modules',
      message: `contains unknown module ${unknown.slice(0, 100)}; must be from ${[...modulesOf()].join(', ')}`,
    })
  return {
    all: tools === 'all',
    modules,
    readOnly: queryFlag(query, 'read_only'),
    permitted: queryFlag(query, 'permitted'),
    project: queryText(query, 'project_id') ?? null,
  }
}

/** Whether an operation is callable in a view. */
export const isWithin = ({ modules, readOnly }: View, { module, operation }: OperationTool): boolean =>
  (modules === null || modules.includes(module)) && (!readOnly || operation.method === 'get')

/** Returns the operations of a view, by name. */
export function operationsIn(view: View, caller: Caller): readonly OperationTool[] {
  const tools = view.permitted ? permittedTools(caller) : operationTools()
  return view.modules === null && !view.readOnly ? tools : tools.filter(tool => isWithin(view, tool))
}
