import fields from 'fields:createTrigger'
import { Select, SimpleGrid, Stack } from '@mantine/core'
import type { Trigger, TriggerInput } from '@muster/client'
import {
  createTrigger,
  listAgents,
  listEvals,
  listEventRegistry,
  listFormations,
  listOrchestrations,
  listPlaybooks,
  listTools,
  updateTrigger,
} from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { api } from '../api.ts'
import { useAction } from '../components/actions.tsx'
import { SchemaForm, type Values } from '../components/schema-form.tsx'
import { SecretOnce } from '../components/secret.tsx'
import { visible } from '../components/text.tsx'
import { usePermissions } from '../projects.ts'
import * as strings from '../strings.ts'

/** Records of a kind that are offered as the target. */
const TARGETS = 100

type Type = Trigger['type']
type TargetType = Trigger['target_type']

/** Fields of the types of triggers. */
const FIELDS: Record<Type, string[]> = {
  manual: ['input'],
  schedule: ['cron', 'timezone', 'input', 'overlap_policy', 'misfire_policy'],
  event: ['event_pattern', 'event_filter', 'input', 'input_mapping'],
  webhook: ['input', 'input_mapping', 'signature_scheme', 'signature_header'],
}

type Target = { id: string; name: string | null }
type Args = { project_id: string; limit: number }

const LISTS: Record<
  TargetType,
  { action: string; read: (args: Args, options: { signal: AbortSignal }) => PromiseLike<{ data: Target[] }> }
> = {
  orchestration: {
    action: 'orchestrations:ListOrchestrations',
    read: (args, options) => listOrchestrations(api, args, options).page(),
  },
  agent: { action: 'agents:ListAgents', read: (args, options) => listAgents(api, args, options).page() },
  tool: { action: 'tools:ListTools', read: (args, options) => listTools(api, args, options).page() },
  eval: { action: 'evaluations:ListEvals', read: (args, options) => listEvals(api, args, options).page() },
  playbook: { action: 'playbooks:ListPlaybooks', read: (args, options) => listPlaybooks(api, args, options).page() },
  formation: {
    action: 'formations:ListFormations',
    read: (args, options) => listFormations(api, args, options).page(),
  },
}

/** Creates or changes a trigger. The secret of a new webhook trigger is shown once. */
export function TriggerForm({
  projectId,
  trigger,
  onDone,
}: {
  projectId: string
  trigger?: Trigger
  /** Called with the ID of a new trigger. */
  onDone: (id?: string) => void
}) {
  const isAllowed = usePermissions(projectId)
  const [type, setType] = useState<Type>(trigger?.type ?? 'schedule')
  const [target, setTarget] = useState<TargetType>(trigger?.target_type ?? 'orchestration')
  const { action, read } = LISTS[target]
  const targets = useQuery<Target[]>({
    queryKey: ['targets', projectId, target],
    queryFn: async ({ signal }) => (await read({ project_id: projectId, limit: TARGETS }, { signal })).data,
    enabled: isAllowed(action) === true,
  })
  const registry = useQuery({
    queryKey: ['event-registry'],
    queryFn: async ({ signal }) => listEventRegistry(api, {}, { signal }).all(),
    staleTime: Number.POSITIVE_INFINITY,
    enabled: type === 'event',
  })
  const save = useAction<Values, Trigger & { secret?: string }>({
    run: async values =>
      trigger
        ? updateTrigger(api, { ...values, trigger_id: trigger.id })
        : createTrigger(api, { ...(values as TriggerInput), type, target_type: target, project_id: projectId }),
    stale: [['triggers'], ['trigger', trigger?.id]],
    onDone: made => {
      if (!made.secret) onDone(made.id)
    },
  })
  if (save.data?.secret)
    return (
      <SecretOnce secret={save.data.secret} notice={strings.triggers.secretOnce} onDone={() => onDone(save.data?.id)} />
    )
  const only = [
    'name',
    'target_id',
    ...(target === 'tool' || target === 'formation' ? ['action'] : []),
    ...FIELDS[type],
    'description',
    'policy_id',
  ]
  const patterns = (registry.data ?? []).flatMap(({ prefix, events }) => [
    `${prefix}*`,
    ...events.map(({ name }) => name),
  ])
  return (
    <Stack gap="md">
      {!trigger && (
        <SimpleGrid cols={{ base: 1, xs: 2 }}>
          <Select
            label={strings.triggers.type}
            description={strings.triggers.typeHelp}
            data={Object.keys(FIELDS).map(value => ({ value, label: strings.triggers.types[value as Type] }))}
            value={type}
            onChange={value => setType(value as Type)}
            allowDeselect={false}
            data-autofocus
          />
          <Select
            label={strings.triggers.starts}
            description={strings.triggers.startsHelp}
            data={Object.keys(LISTS).map(value => ({ value, label: strings.triggers.targets[value as TargetType] }))}
            value={target}
            onChange={value => setTarget(value as TargetType)}
            allowDeselect={false}
          />
        </SimpleGrid>
      )}
      <SchemaForm
        key={`${type} ${target}`}
        schema={fields}
        initial={trigger}
        only={only}
        // The list that is not read yet is an empty one: the field does not change its kind.
        options={
          isAllowed(action)
            ? { target_id: (targets.data ?? []).map(({ id, name }) => ({ value: id, label: visible(name ?? id) })) }
            : undefined
        }
        suggestions={{ event_pattern: patterns }}
        submitLabel={trigger ? strings.save : strings.create}
        isPending={save.isPending}
        error={save.error}
        onSubmit={values => save.mutate(values)}
        onCancel={() => onDone()}
      />
    </Stack>
  )
}
