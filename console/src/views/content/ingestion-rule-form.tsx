import fields from 'fields:createIngestionRule'
import type { IngestionRule, IngestionRuleInput } from '@muster/client'
import { createIngestionRule, getIngestionRule, updateIngestionRule } from '@muster/client/operations'
import { api } from '#api.ts'
import { useAgents, useTools } from '#choices.ts'
import type { Read } from '#components/guarded-save.tsx'
import { RecordForm, readTagged } from '#components/record-form.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.ingestionRules

const properties = fields.properties ?? {}
const schema = {
  properties: {
    ...properties,
    content_type_glob: { ...properties.content_type_glob, title: texts.glob, description: texts.globHelp },
    path_prefix: { ...properties.path_prefix, title: texts.folder, description: texts.folderHelp },
    agent_id: { ...properties.agent_id, title: texts.agent, description: texts.agentHelp },
    tool_id: { ...properties.tool_id, title: texts.tool, description: texts.toolHelp },
    action: { ...properties.action, title: texts.action },
    preset_parameters: { ...properties.preset_parameters, title: texts.presets },
    native_extraction: { ...properties.native_extraction, title: texts.native, description: texts.nativeHelp },
    file_delivery: { ...properties.file_delivery, title: texts.delivery, description: texts.deliveryHelp },
    chunk_strategy: { ...properties.chunk_strategy, title: texts.strategy },
    chunk_unit: { ...properties.chunk_unit, title: texts.unit, description: '' },
    chunk_size: { ...properties.chunk_size, title: texts.size },
    chunk_overlap: { ...properties.chunk_overlap, title: texts.overlap },
    search_language: { ...properties.search_language, title: texts.language, description: texts.languageHelp },
    metadata: { ...properties.metadata, title: texts.metadata, description: '' },
  },
  required: fields.required,
}

const ORDER = [
  ...['content_type_glob', 'path_prefix', 'agent_id', 'tool_id', 'action', 'preset_parameters'],
  ...['native_extraction', 'file_delivery', 'chunk_strategy', 'chunk_unit', 'chunk_size', 'chunk_overlap'],
  ...['search_language', 'metadata'],
]

export const readRule = (id: string, signal?: AbortSignal): Promise<Read<IngestionRule>> =>
  readTagged(getIngestionRule, { ingestion_rule_id: id }, signal)

/** Creates or changes an ingestion rule. */
export function IngestionRuleForm({
  first,
  onDone,
  onCancel,
}: {
  first?: Read<IngestionRule>
  onDone: (id: string) => void
  onCancel: () => void
}) {
  const projectId = useProjectId()
  const agents = useAgents(projectId)
  const tools = useTools(projectId)
  return (
    <RecordForm<IngestionRule>
      first={first}
      read={readRule}
      write={async (change, options, id) =>
        id
          ? updateIngestionRule(api, { ...change, ingestion_rule_id: id }, options)
          : createIngestionRule(api, { ...change, project_id: projectId } as IngestionRuleInput)
      }
      stale={[['ingestion-rules', projectId], ['ingestion-rule']]}
      schema={schema}
      only={ORDER}
      options={{ agent_id: agents.choices, tool_id: tools.choices }}
      onDone={onDone}
      onCancel={onCancel}
    />
  )
}
