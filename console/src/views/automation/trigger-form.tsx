import fields from 'fields:createTrigger'
import { Select, SimpleGrid, Stack } from '@mantine/core'
import type { Trigger, TriggerInput } from '@muster/client'
import { createTrigger, updateTrigger } from '@muster/client/operations'
import { useState } from 'react'
import { api } from '#api.ts'
import { useEventPatterns } from '#choices.ts'
import { useAction } from '#components/actions.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { SecretOnce } from '#components/secret.tsx'
import * as strings from '#strings.ts'

type Type = Trigger['type']
type TargetType = Trigger['target_type']

/** Fields of the types of triggers. */
const FIELDS: Record<Type, string[]> = {
  manual: ['input'],
  schedule: ['cron', 'timezone', 'input', 'overlap_policy', 'misfire_policy'],
  event: ['event_pattern', 'event_filter', 'input', 'input_mapping'],
  webhook: ['input', 'input_mapping', 'signature_scheme', 'signature_header'],
}

const TARGETS: TargetType[] = ['orchestration', 'agent', 'tool', 'eval', 'playbook', 'formation']

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
  const [type, setType] = useState<Type>(trigger?.type ?? 'schedule')
  const [target, setTarget] = useState<TargetType>(trigger?.target_type ?? 'orchestration')
  const patterns = useEventPatterns(type === 'event')
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
            data={TARGETS.map(value => ({ value, label: strings.triggers.targets[value] }))}
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
        refers={{ target_id: target }}
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
