import { raiseInvalid } from '../core/api/errors.ts'
import type { Caller } from '../core/iam/caller.ts'
import { modulesOf, type OperationTool, operationTools, permittedTools } from './registry.ts'

/** What the query of /mcp makes of the tools. */
export type View = {
  /** Whether every operation is listed. */
  all: boolean
  /** Modules that are listed and callable; null for all. */
  modules: readonly string[] | null
  /** Only operations that read are listed and callable. */
  readOnly: boolean
  /** Tools that the credential can use nowhere are not listed. */
  permitted: boolean
  /** Project that resources are listed of. */
  project: string | null
}

const text = (query: Record<string, unknown>, name: string): string | undefined => {
  const value = query[name]
  if (value === undefined || typeof value === 'string') return value
  return raiseInvalid({ code: 'INVALID_VALUE', path: name, message: 'must be given once' })
}

const isOn = (query: Record<string, unknown>, name: string): boolean => {
  const value = text(query, name)
  if (value === undefined || value === 'false') return false
  return value === 'true' || raiseInvalid({ code: 'INVALID_VALUE', path: name, message: 'must be true or false' })
}

/** Raises VALIDATION_FAILED. */
export function viewOf(query: Record<string, unknown>): View {
  const tools = text(query, 'tools')
  if (tools !== undefined && tools !== 'all')
    raiseInvalid({ code: 'INVALID_VALUE', path: 'tools', message: 'must be all' })
  const modules = text(query, 'modules')?.split(',') ?? null
  const unknown = modules?.find(module => !modulesOf().has(module))
  if (unknown !== undefined)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'modules',
      message: `${unknown.slice(0, 100)} is none of ${[...modulesOf()].join(', ')}`,
    })
  return {
    all: tools === 'all',
    modules,
    readOnly: isOn(query, 'read_only'),
    permitted: isOn(query, 'permitted'),
    project: text(query, 'project_id') ?? null,
  }
}

/** Whether a view lets an operation be called. */
export const isWithin = ({ modules, readOnly }: View, { module, operation }: OperationTool): boolean =>
  (modules === null || modules.includes(module)) && (!readOnly || operation.method === 'get')

/** The operations of a view, by name. */
export function operationsIn(view: View, caller: Caller): readonly OperationTool[] {
  const tools = view.permitted ? permittedTools(caller) : operationTools()
  return view.modules === null && !view.readOnly ? tools : tools.filter(tool => isWithin(view, tool))
}
