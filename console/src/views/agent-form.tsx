import {
  Button,
  Card,
  Group,
  JsonInput,
  NumberInput,
  SegmentedControl,
  Select,
  SimpleGrid,
  Stack,
  Textarea,
  TextInput,
} from '@mantine/core'
import { useForm } from '@mantine/form'
import { type Agent, isMusterError } from '@muster/client'
import { createAgent, getAgent, listAiProviders, updateAgent } from '@muster/client/operations'
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useEffect, useState } from 'react'
import { api } from '../api.ts'
import { Conflict } from '../components/conflict.tsx'
import { Page } from '../components/page.tsx'
import { FailureAlert } from '../components/states.tsx'
import { useProjectId } from '../projects.ts'
import * as strings from '../strings.ts'

/** Fields of an agent that the form shows; the others are edited as JSON. */
type Fields = {
  name: string
  description: string
  instructions: string
  ai_provider_id: string | null
  model: string
  temperature: number | ''
  max_steps: number | ''
  max_output_tokens: number | ''
}

const READ_ONLY = ['id', 'project_id', 'version', 'active_release', 'created_at', 'updated_at']

const fieldsOf = (agent?: Agent): Fields => ({
  name: agent?.name ?? '',
  description: agent?.description ?? '',
  instructions: agent?.instructions ?? '',
  ai_provider_id: agent?.ai_provider_id ?? null,
  model: agent?.model ?? '',
  temperature: agent?.temperature ?? '',
  max_steps: agent?.max_steps ?? '',
  max_output_tokens: agent?.max_output_tokens ?? '',
})

type Change = Record<string, unknown>

/** Returns the fields that differ from the agent, with null for emptied ones. */
function changesOf(values: object, agent: object | undefined): Change {
  const before = (agent ?? {}) as Change
  return Object.fromEntries(
    Object.entries(values)
      .map(([name, value]) => [name, value === '' ? null : value] as const)
      .filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name] ?? null)),
  )
}

/** Form of a new agent. */
export function NewAgent() {
  const navigate = useNavigate()
  const projectId = useProjectId()
  const open = (to: string) => void navigate({ to })
  return (
    <Page title={strings.agents.create} intro={strings.agents.emptyText}>
      <AgentForm onDone={id => open(`/p/${projectId}/agents/${id}`)} onCancel={() => open(`/p/${projectId}/agents`)} />
    </Page>
  )
}

/** Creates or changes an agent, by its fields or as JSON. A concurrent change by another user is shown first. */
export function AgentForm({
  agent,
  etag,
  onDone,
  onCancel,
}: {
  agent?: Agent
  etag?: string | null
  onDone: (id: string) => void
  onCancel: () => void
}) {
  const projectId = useProjectId()
  const cache = useQueryClient()
  const [mode, setMode] = useState<'form' | 'json'>('form')
  const [base, setBase] = useState({ agent, etag })
  const [conflict, setConflict] = useState<{ theirs: Agent; etag: string | null; change: Change } | null>(null)
  const providers = useQuery({
    queryKey: ['ai-providers', projectId],
    queryFn: async ({ signal }) =>
      (await listAiProviders(api, { project_id: projectId, limit: 100 }, { signal }).page()).data,
  })
  const form = useForm({ initialValues: fieldsOf(agent) })
  // The only provider is the one that a new agent uses.
  const [first, ...others] = providers.data ?? []
  useEffect(() => {
    if (!agent && first && others.length === 0) form.setFieldValue('ai_provider_id', first.id)
  }, [first?.id])
  const editable = Object.fromEntries(Object.entries(agent ?? {}).filter(([name]) => !READ_ONLY.includes(name)))
  const [json, setJson] = useState(JSON.stringify(editable, null, 2))
  const parsed = parseObject(json)
  const save = useMutation({
    mutationFn: async ({ change, ifMatch }: { change: Change; ifMatch?: string | null }) =>
      base.agent
        ? updateAgent(api, { ...change, agent_id: base.agent.id }, { ifMatch: ifMatch ?? undefined })
        : createAgent(api, { ...change, project_id: projectId }),
    onSuccess: async ({ id }) => {
      await Promise.all([
        cache.invalidateQueries({ queryKey: ['agents'] }),
        cache.invalidateQueries({ queryKey: ['agent', id] }),
        cache.invalidateQueries({ queryKey: ['start'] }),
      ])
      onDone(id)
    },
    onError: async (error, { change }) => {
      if (!isMusterError(error, 'PRECONDITION_FAILED') || !base.agent) return
      const { data, etag } = await getAgent(api, { agent_id: base.agent.id }).withResponse()
      setConflict({ theirs: data as Agent, etag, change })
    },
  })
  const submit = (values: object) => save.mutate({ change: changesOf(values, base.agent), ifMatch: base.etag })
  const number = (name: 'temperature' | 'max_steps' | 'max_output_tokens', label: string, step: number) => (
    <NumberInput label={label} min={0} step={step} hideControls {...form.getInputProps(name)} />
  )
  return (
    <Card withBorder padding="lg" radius="lg">
      <Stack gap="md">
        <SegmentedControl
          value={mode}
          onChange={value => setMode(value as 'form' | 'json')}
          data={[
            { value: 'form', label: strings.agents.form },
            { value: 'json', label: strings.agents.json },
          ]}
          w="fit-content"
          aria-label={strings.agents.form}
        />
        <form
          onSubmit={event => {
            event.preventDefault()
            if (mode === 'json') parsed && submit(parsed)
            else form.onSubmit(submit)(event)
          }}
        >
          <Stack gap="md">
            {mode === 'form' ? (
              <>
                <SimpleGrid cols={{ base: 1, sm: 2 }}>
                  <TextInput label={strings.agents.name} data-autofocus {...form.getInputProps('name')} />
                  <TextInput label={strings.agents.description} {...form.getInputProps('description')} />
                </SimpleGrid>
                <Textarea
                  label={strings.agents.instructions}
                  description={strings.agents.instructionsHelp}
                  autosize
                  minRows={6}
                  maxRows={24}
                  {...form.getInputProps('instructions')}
                />
                <SimpleGrid cols={{ base: 1, sm: 2 }}>
                  <Select
                    label={strings.agents.providerField}
                    data={(providers.data ?? []).map(({ id, name }) => ({ value: id, label: name }))}
                    clearable
                    clearButtonProps={{ 'aria-label': strings.filtered.clear }}
                    {...form.getInputProps('ai_provider_id')}
                  />
                  <TextInput
                    label={strings.agents.model}
                    placeholder={strings.agents.modelHelp}
                    {...form.getInputProps('model')}
                  />
                </SimpleGrid>
                <SimpleGrid cols={{ base: 1, sm: 3 }}>
                  {number('temperature', strings.agents.temperature, 0.1)}
                  {number('max_steps', strings.agents.maxSteps, 1)}
                  {number('max_output_tokens', strings.agents.maxOutput, 1)}
                </SimpleGrid>
              </>
            ) : (
              <JsonInput
                label={strings.agents.jsonLabel}
                description={strings.agents.jsonHelp}
                error={parsed ? null : strings.agents.jsonWrong}
                value={json}
                onChange={setJson}
                autosize
                minRows={16}
                maxRows={32}
                classNames={{ input: 'mono' }}
              />
            )}
            {save.error && !conflict && <FailureAlert error={save.error} />}
            <Group>
              <Button type="submit" loading={save.isPending} disabled={mode === 'json' && !parsed}>
                {agent ? strings.save : strings.create}
              </Button>
              <Button variant="default" onClick={onCancel}>
                {strings.cancel}
              </Button>
            </Group>
          </Stack>
        </form>
      </Stack>
      <Conflict
        title={strings.agents.changed}
        theirs={conflict && changesOf(conflict.theirs, base.agent)}
        yours={conflict?.change}
        onClose={() => setConflict(null)}
        onOverwrite={() => {
          if (!conflict) return
          setConflict(null)
          save.mutate({ change: conflict.change, ifMatch: conflict.etag })
        }}
        onTake={() => {
          if (!conflict) return
          setBase({ agent: conflict.theirs, etag: conflict.etag })
          form.setValues(fieldsOf(conflict.theirs))
          save.reset()
          setConflict(null)
        }}
      />
    </Card>
  )
}

/** Returns the object of a JSON text; null if it is none. */
export function parseObject(text: string): Change | null {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Change) : null
  } catch {
    return null
  }
}
