import fields from 'fields:createAgent'
import knowledgeFields from 'fields:createAgent.knowledge_config'
import { Card } from '@mantine/core'
import type { Agent } from '@muster/client'
import { createAgent, getAgent, updateAgent } from '@muster/client/operations'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { api } from '#api.ts'
import { useProviders } from '#choices.ts'
import { FormOrJson } from '#components/form-or-json.tsx'
import { type Read, useGuardedSave } from '#components/guarded-save.tsx'
import { Page } from '#components/page.tsx'
import { type ObjectSchema, SchemaForm } from '#components/schema-form.tsx'
import { Loading } from '#components/states.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { useDirectories, useModels } from './agent-suggestions.ts'
import { toolBindings } from './inline-tool.ts'

const texts = strings.agents

/** Fields that the form shows; the others are edited as JSON. */
const FORM = [
  ...['name', 'description', 'instructions', 'ai_provider_id', 'model_route_id', 'model', 'temperature', 'max_steps'],
  ...['max_output_tokens', 'tool_bindings', 'guardrail_ids', 'knowledge_config'],
]

const schema: ObjectSchema = {
  properties: {
    ...fields.properties,
    tool_bindings: { ...fields.properties?.tool_bindings, entries: toolBindings },
    knowledge_config: { ...fields.properties?.knowledge_config, fields: knowledgeFields },
  },
}

const READ_ONLY = ['id', 'project_id', 'version', 'active_release', 'created_at', 'updated_at']

/** Form of a new agent. */
export function NewAgent() {
  const navigate = useNavigate()
  const projectId = useProjectId()
  const open = (to: string) => void navigate({ to })
  return (
    <Page title={texts.create} intro={texts.emptyText}>
      <AgentForm onDone={id => open(`/p/${projectId}/agents/${id}`)} onCancel={() => open(`/p/${projectId}/agents`)} />
    </Page>
  )
}

/** Reads an agent, and what a later write of it names. */
export async function readAgent(id: string, signal?: AbortSignal): Promise<Read<Agent>> {
  const { data, etag } = await getAgent(api, { agent_id: id }, { signal }).withResponse()
  return { record: data as Agent, etag }
}

/** Creates or changes an agent, by its fields or as JSON. */
export function AgentForm({
  first,
  onDone,
  onCancel,
}: {
  first?: Read<Agent>
  onDone: (id: string) => void
  onCancel: () => void
}) {
  const projectId = useProjectId()
  const { choices, query } = useProviders(projectId)
  const [providerId, setProviderId] = useState<string | null>(null)
  const suggestions = {
    model: useModels(projectId, providerId),
    'knowledge_config.document_paths': useDirectories(projectId),
  }
  const id = first?.record.id
  const {
    base: agent,
    formKey,
    save,
    dialog,
    ...state
  } = useGuardedSave<Agent>({
    title: texts.changed,
    first,
    read: () => readAgent(id as string),
    write: async (change, options) =>
      id
        ? updateAgent(api, { ...change, agent_id: id }, options)
        : createAgent(api, { ...change, project_id: projectId }),
    stale: [['agents'], ['start'], ...(id ? [['agent', id]] : [])],
    onDone,
  })
  // A new agent begins with the only provider.
  if (!agent && choices?.length === 0 && !query.isFetched) return <Loading />
  const common = { submitLabel: agent ? strings.save : strings.create, onCancel, ...state }
  return (
    <Card withBorder padding="lg" radius="lg">
      <FormOrJson
        key={formKey}
        record={Object.fromEntries(Object.entries(agent ?? {}).filter(([name]) => !READ_ONLY.includes(name)))}
        onSubmit={save}
        {...common}
        form={
          <SchemaForm
            schema={schema}
            only={FORM}
            initial={agent}
            start={choices?.length === 1 ? { ai_provider_id: choices[0]?.value } : {}}
            suggestions={suggestions}
            watch={{ field: 'ai_provider_id', onChange: id => setProviderId((id as string) || null) }}
            onSubmit={save}
            {...common}
          />
        }
      />
      {dialog}
    </Card>
  )
}
