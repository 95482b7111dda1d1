import toolFields from 'fields:createTool'
import executeFields from 'fields:createTool.execute'
import mcpFields from 'fields:createTool.mcp'
import { Select, Stack } from '@mantine/core'
import type { Tool, ToolInput } from '@muster/client'
import { createTool, getTool, updateTool } from '@muster/client/operations'
import { useState } from 'react'
import { api } from '#api.ts'
import { FormOrJson } from '#components/form-or-json.tsx'
import { type Read, useGuardedSave } from '#components/guarded-save.tsx'
import { type ObjectSchema, SchemaForm, type Values } from '#components/schema-form.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

export const TOOL_TYPES = ['http', 'mcp', 'platform', 'pipeline', 'client'] as const
type ToolType = Tool['type']

/** Fields of each type. Fields of the request of a tool are written next to the others. */
const FIELDS: Record<ToolType, { request?: 'execute' | 'mcp'; fields: string[] }> = {
  http: {
    request: 'execute',
    fields: [
      ...['name', 'description', 'url', 'method', 'parameters', 'headers', 'auth', 'body_mode', 'timeout_ms', 'sign'],
      ...['preset_parameters', 'context_keys', 'output_mapping', 'guardrail_ids', 'idempotent'],
    ],
  },
  mcp: {
    request: 'mcp',
    fields: [
      ...['name', 'description', 'url', 'headers', 'auth', 'actions', 'denied_actions'],
      ...['preset_parameters', 'context_keys', 'guardrail_ids'],
    ],
  },
  platform: {
    fields: ['name', 'description', 'actions', 'denied_actions', 'preset_parameters', 'guardrail_ids'],
  },
  pipeline: {
    fields: ['name', 'description', 'parameters', 'pipeline', 'output_mapping', 'guardrail_ids', 'idempotent'],
  },
  client: { fields: ['name', 'description', 'parameters', 'guardrail_ids'] },
}

const READ_ONLY = ['id', 'project_id', 'created_at', 'updated_at']
const REQUEST_FIELDS = { execute: executeFields, mcp: mcpFields }

/** The schema of the form of a type: fields of the tool, and of its request. */
function schemaOf(type: ToolType): ObjectSchema {
  const { request } = FIELDS[type]
  const nested = request ? REQUEST_FIELDS[request] : { properties: {}, required: [] }
  const { url } = nested.properties ?? {}
  return {
    // An address is long, but no text of several lines.
    properties: { ...toolFields.properties, ...nested.properties, ...(url ? { url: { ...url, maxLength: 0 } } : {}) },
    required: ['name', ...(nested.required ?? [])],
  }
}

/** Moves the fields of the request to where the API has them. A changed request is sent whole. */
function packed(type: ToolType, values: Values, tool?: Tool): Values {
  const { request } = FIELDS[type]
  if (!request) return values
  const names = Object.keys(REQUEST_FIELDS[request].properties ?? {})
  const [inside, outside] = [true, false].map(isInside =>
    Object.entries(values).filter(([name]) => names.includes(name) === isInside),
  )
  if (inside.length === 0) return values
  const changed = { ...tool?.[request], ...Object.fromEntries(inside) }
  const kept = Object.fromEntries(Object.entries(changed).filter(([, value]) => value !== null))
  return { ...Object.fromEntries(outside), [request]: kept }
}

/** Reads a tool, and what a later write of it names. */
export async function readTool(id: string, signal?: AbortSignal): Promise<Read<Tool>> {
  const { data, etag } = await getTool(api, { tool_id: id }, { signal }).withResponse()
  return { record: data as Tool, etag }
}

/** Creates or changes a tool, by its fields or as JSON. */
export function ToolForm({
  first,
  onDone,
  onCancel,
}: {
  first?: Read<Tool>
  onDone: (id: string) => void
  onCancel: () => void
}) {
  const projectId = useProjectId()
  const [type, setType] = useState<ToolType>(first?.record.type ?? 'http')
  const id = first?.record.id
  const {
    base: tool,
    formKey,
    save,
    dialog,
    ...state
  } = useGuardedSave<Tool>({
    first,
    read: () => readTool(id as string),
    write: async (change, options) =>
      id
        ? updateTool(api, { ...change, tool_id: id }, options)
        : createTool(api, { type, ...change, project_id: projectId } as ToolInput),
    stale: [['tools', projectId], ...(id ? [['tool', id]] : [])],
    onDone,
  })
  const { request, fields } = FIELDS[type]
  const common = {
    submitLabel: tool ? strings.save : strings.create,
    onCancel,
    ...state,
  }
  const writable = Object.entries(tool ?? { type, name: '' }).filter(([name]) => !READ_ONLY.includes(name))
  return (
    <Stack gap="md">
      {!tool && (
        <Select
          label={strings.tools.type}
          description={strings.tools.typeHelp[type]}
          data={TOOL_TYPES.map(value => ({ value, label: strings.tools.types[value] }))}
          value={type}
          onChange={next => next && setType(next as ToolType)}
          allowDeselect={false}
        />
      )}
      <FormOrJson
        key={`${type} ${formKey}`}
        record={Object.fromEntries(writable)}
        onSubmit={save}
        {...common}
        form={
          <SchemaForm
            schema={schemaOf(type)}
            only={fields}
            initial={tool && { ...tool, ...(request ? tool[request] : {}) }}
            onSubmit={values => save(packed(type, values, tool))}
            {...common}
          />
        }
      />
      {dialog}
    </Stack>
  )
}
