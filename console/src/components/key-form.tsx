import fields from 'fields:createProjectKey'
import { Alert, Text } from '@mantine/core'
import type { ProjectKey } from '@muster/client'
import { createProjectKey, updateProjectKey } from '@muster/client/operations'
import { IconInfoCircle } from '@tabler/icons-react'
import { usePolicyNames } from '#access.ts'
import { api } from '#api.ts'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { useAction } from './actions.tsx'
import { SchemaForm, type Values } from './schema-form.tsx'
import { SecretOnce } from './secret.tsx'

const DAY_MS = 86_400_000

/** Choices of an expiry, with the current expiry of a key. */
const expiryChoices = (current?: string | null) => [
  ...(current ? [{ value: current, label: new Date(current).toLocaleDateString() }] : []),
  ...[30, 90, 365].map(days => ({
    value: new Date(Math.floor(Date.now() / DAY_MS + days) * DAY_MS).toISOString(),
    label: strings.keys.inDays(days),
  })),
]

/** Creates or changes a project key. A new one is shown once: it is forgotten with the form. */
export function KeyForm({ record, onDone }: { record?: ProjectKey; onDone: () => void }) {
  const projectId = useProjectId()
  const { options } = usePolicyNames(projectId)
  const save = useAction<Values, ProjectKey & { key?: string }>({
    run: async values =>
      record
        ? updateProjectKey(api, {
            key_id: record.id,
            ...values,
            // No policies are an empty list, which is never null.
            ...('policy_ids' in values ? { policy_ids: (values.policy_ids ?? []) as string[] } : {}),
          })
        : createProjectKey(api, { project_id: projectId, ...values }),
    stale: [
      ['keys', projectId],
      ['start', 'keys'],
    ],
    onDone: () => record && onDone(),
  })
  if (save.data?.key) return <SecretOnce secret={save.data.key} notice={strings.key.once} onDone={onDone} />
  return (
    <SchemaForm
      schema={fields}
      initial={record as Values | undefined}
      only={['name', 'policy_ids', 'allowed_ips', 'expires_at']}
      options={{ ...(options ? { policy_ids: options } : {}), expires_at: expiryChoices(record?.expires_at) }}
      submitLabel={record ? strings.save : strings.create}
      isPending={save.isPending}
      error={save.error}
      onSubmit={values => save.mutate(values)}
      onCancel={onDone}
    >
      <Alert icon={<IconInfoCircle />} p="xs">
        <Text size="sm">{strings.key.policy}</Text>
      </Alert>
    </SchemaForm>
  )
}
