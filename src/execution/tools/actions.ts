import { createHash } from 'node:crypto'
import type { ToolAction, ToolDefinition } from './model.ts'
import { actionSchema, platformActions } from './platform.ts'

const MAX_NAME = 64

/** Returns a tool name that providers accept; a long name is cut and gets a hash suffix. */
export function resolvedName(name: string): string {
  const safe = name.replace(/[^A-Za-z0-9_-]/gu, '_')
  return safe.length <= MAX_NAME ? safe : distinctName(safe, name)
}

/** Returns a name with a suffix that depends on another one, within the length that providers accept. */
export const distinctName = (name: string, original: string): string =>
  `${name.slice(0, MAX_NAME - 7)}_${createHash('sha256').update(original).digest('hex').slice(0, 6)}`

/** Returns a parameter schema without preset arguments. */
export function withoutPresets(schema: Record<string, unknown>, presets: Record<string, unknown> | null) {
  if (!presets) return schema
  const { properties, required, ...rest } = schema as { properties?: Record<string, unknown>; required?: unknown }
  const isOpen = (name: string) => !Object.hasOwn(presets, name)
  return {
    ...rest,
    ...(properties
      ? { properties: Object.fromEntries(Object.entries(properties).filter(([name]) => isOpen(name))) }
      : {}),
    ...(Array.isArray(required) ? { required: required.filter(name => typeof name !== 'string' || isOpen(name)) } : {}),
  }
}

/** Returns the actions of a tool as models see them; actions of mcp tools are listed by their server (mcp.ts). */
export function actionsOf(tool: ToolDefinition): ToolAction[] {
  const { name, description, parameters, preset_parameters, actions } = tool
  if (tool.type !== 'platform')
    return [
      {
        name,
        resolved_name: resolvedName(name),
        description,
        input_schema: withoutPresets(parameters ?? { type: 'object' }, preset_parameters),
      },
    ]
  return (actions ?? []).flatMap(action => {
    const operation = platformActions().get(action)
    if (!operation) return []
    return {
      name: action,
      resolved_name: resolvedName(`${name}_${action}`),
      description: description ?? operation.summary,
      input_schema: withoutPresets(actionSchema(operation), preset_parameters),
    }
  })
}
