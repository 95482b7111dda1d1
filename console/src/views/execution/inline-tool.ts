import bindingFields from 'fields:createAgent.tool_bindings'
import inlineFields from 'fields:createAgent.tool_bindings.tool'
import executeFields from 'fields:createAgent.tool_bindings.tool.execute'
import mcpFields from 'fields:createAgent.tool_bindings.tool.mcp'
import type { ObjectSchema } from '#components/schema-form.tsx'
import * as strings from '#strings.ts'

/** Fields of inline tools, by type. */
const FIELDS = {
  http: [
    ...['name', 'type', 'description', 'parameters', 'execute'],
    ...['preset_parameters', 'context_keys', 'output_mapping', 'idempotent'],
  ],
  mcp: ['name', 'type', 'description', 'mcp', 'actions', 'denied_actions', 'preset_parameters', 'context_keys'],
  platform: ['name', 'type', 'description', 'actions', 'denied_actions', 'preset_parameters', 'context_keys'],
  client: ['name', 'type', 'description', 'parameters'],
}

const inlineTool: ObjectSchema = {
  ...inlineFields,
  properties: {
    ...inlineFields.properties,
    type: { ...inlineFields.properties?.type, enum: Object.keys(FIELDS), default: 'http' },
    execute: { ...inlineFields.properties?.execute, fields: executeFields },
    mcp: { ...inlineFields.properties?.mcp, fields: mcpFields },
  },
  only: ({ type }) => FIELDS[type as keyof typeof FIELDS] ?? FIELDS.http,
}

/** The tools of an agent: tools of the project, and inline definitions. */
export const toolBindings = {
  ...bindingFields,
  properties: {
    ...bindingFields.properties,
    tool: { ...bindingFields.properties?.tool, fields: inlineTool },
  },
  title: strings.agents.tool,
  variants: [
    { label: strings.agents.addTool, fields: ['tool_id', 'label'] },
    { label: strings.agents.addInlineTool, fields: ['tool', 'label'] },
  ],
}
