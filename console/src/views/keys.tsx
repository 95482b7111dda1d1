import createFields from 'fields:createProjectKey'
import rotateFields from 'fields:rotateProjectKey'
import { Alert, Badge, Button, Group, Modal, Stack, Text } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import type { ProjectKey } from '@muster/client'
import {
  createProjectKey,
  deleteProjectKey,
  getProjectKeyUsage,
  listProjectKeys,
  rotateProjectKey,
  updateProjectKey,
} from '@muster/client/operations'
import { IconInfoCircle, IconKey, IconPlus } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { usePolicyNames } from '../access.ts'
import { api } from '../api.ts'
import { ActionButton, FormButton, RowActions, useAction } from '../components/actions.tsx'
import { type Column, ListView, useList } from '../components/list.tsx'
import { Page } from '../components/page.tsx'
import { SchemaForm, type Values } from '../components/schema-form.tsx'
import { SecretOnce } from '../components/secret.tsx'
import { Loaded, Notice } from '../components/states.tsx'
import { visible, When } from '../components/text.tsx'
import { usePermissions, useProjectId } from '../projects.ts'
import * as strings from '../strings.ts'

const texts = strings.keys
const FIELDS = ['name', 'policy_ids', 'allowed_ips', 'expires_at']
const DAY_MS = 86_400_000

/** Keys with which applications call the API for a project. */
export function Keys() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { nameOf } = usePolicyNames(projectId)
  const [isCreating, creating] = useDisclosure()
  const key = ['keys', projectId]
  const list = useList<ProjectKey>(key, async (_, bounds, signal) =>
    listProjectKeys(api, { project_id: projectId, ...bounds }, { signal }).page(),
  )
  const columns: Column<ProjectKey>[] = [
    {
      title: texts.name,
      isWide: true,
      cell: ({ name, key_prefix, policy_ids }) => (
        <>
          <Text fw={600}>{visible(name ?? texts.unnamed)}</Text>
          <Text size="sm" c="dimmed" className="mono">
            {key_prefix}…
          </Text>
          <Group gap={6} mt={4}>
            {policy_ids.length === 0 ? (
              <Badge variant="dot" color="yellow" title={texts.unboundedText}>
                {texts.unbounded}
              </Badge>
            ) : (
              policy_ids.map(id => (
                <Badge variant="default" key={id}>
                  {visible(nameOf(id))}
                </Badge>
              ))
            )}
          </Group>
        </>
      ),
    },
    {
      title: texts.used,
      cell: ({ id, name, last_used_at }) => (
        <>
          {last_used_at ? <When at={last_used_at} /> : texts.never}
          {isAllowed('project-keys:GetProjectKey') && (
            <FormButton
              label={texts.activity}
              title={visible(name ?? texts.unnamed)}
              size="compact-xs"
              variant="transparent"
              px={0}
              form={() => <Activity keyId={id} />}
            />
          )}
        </>
      ),
    },
    {
      title: texts.expires,
      cell: ({ expires_at }) =>
        expires_at ? (
          <Group gap={6}>
            <When at={expires_at} />
            {Date.parse(expires_at) < Date.now() && <Badge variant="default">{texts.expired}</Badge>}
          </Group>
        ) : (
          texts.noExpiry
        ),
    },
    {
      title: texts.actions,
      cell: row => (
        <RowActions>
          {isAllowed('project-keys:UpdateProjectKey') && (
            <FormButton
              label={strings.agents.edit}
              size="xs"
              variant="default"
              form={close => <KeyEdit record={row} onDone={close} />}
            />
          )}
          {isAllowed('project-keys:RotateProjectKey') && (
            <FormButton
              label={texts.rotate}
              size="xs"
              variant="default"
              form={close => <Rotate record={row} onDone={close} />}
            />
          )}
          {isAllowed('project-keys:DeleteProjectKey') && (
            <ActionButton
              label={texts.revoke}
              color="red"
              question={texts.revokeText(visible(row.name ?? row.key_prefix))}
              run={async () => deleteProjectKey(api, { key_id: row.id })}
              stale={[key, ['start', 'keys']]}
            />
          )}
        </RowActions>
      ),
    },
  ]
  const create = isAllowed('project-keys:CreateProjectKey') && (
    <Button leftSection={<IconPlus size={16} />} onClick={creating.open}>
      {texts.create}
    </Button>
  )
  return (
    <Page title={strings.nav.keys} intro={texts.intro} actions={create}>
      <ListView
        label={strings.nav.keys}
        list={list}
        action="project-keys:ListProjectKeys"
        columns={columns}
        empty={
          <Notice icon={<IconKey />} title={texts.empty} action={create} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
      {/* Outside of the list: with the first key the notice of the empty one goes, and would take the secret with it. */}
      <Modal opened={isCreating} onClose={creating.close} title={texts.create} size="lg">
        {isCreating && <Create onDone={creating.close} />}
      </Modal>
    </Page>
  )
}

/** Choices of an expiry, with the one that a key has. */
const expiryChoices = (current?: string | null) => [
  ...(current ? [{ value: current, label: new Date(current).toLocaleDateString() }] : []),
  ...[30, 90, 365].map(days => ({
    value: new Date(Math.floor(Date.now() / DAY_MS + days) * DAY_MS).toISOString(),
    label: texts.inDays(days),
  })),
]

function Create({ onDone }: { onDone: () => void }) {
  const projectId = useProjectId()
  const { options } = usePolicyNames(projectId)
  const create = useAction({
    run: async (values: Values) => createProjectKey(api, { project_id: projectId, ...values }),
    stale: [
      ['keys', projectId],
      ['start', 'keys'],
    ],
  })
  if (create.data) return <SecretOnce secret={create.data.key} notice={strings.key.once} onDone={onDone} />
  return (
    <SchemaForm
      schema={createFields}
      only={FIELDS}
      options={{ ...(options ? { policy_ids: options } : {}), expires_at: expiryChoices() }}
      submitLabel={strings.create}
      isPending={create.isPending}
      error={create.error}
      onSubmit={values => create.mutate(values)}
      onCancel={onDone}
    >
      <Alert icon={<IconInfoCircle />} p="xs">
        <Text size="sm">{strings.key.policy}</Text>
      </Alert>
    </SchemaForm>
  )
}

function KeyEdit({ record, onDone }: { record: ProjectKey; onDone: () => void }) {
  const projectId = useProjectId()
  const { options } = usePolicyNames(projectId)
  const save = useAction({
    run: async (values: Values) =>
      updateProjectKey(api, {
        key_id: record.id,
        ...values,
        // No policies are an empty list, which is never null.
        ...('policy_ids' in values ? { policy_ids: (values.policy_ids ?? []) as string[] } : {}),
      }),
    stale: [['keys', projectId]],
    onDone,
  })
  return (
    <SchemaForm
      schema={createFields}
      initial={record as Values}
      only={FIELDS}
      options={{ ...(options ? { policy_ids: options } : {}), expires_at: expiryChoices(record.expires_at) }}
      isPending={save.isPending}
      error={save.error}
      onSubmit={values => save.mutate(values)}
      onCancel={onDone}
    />
  )
}

function Rotate({ record, onDone }: { record: ProjectKey; onDone: () => void }) {
  const rotate = useAction({
    run: async (values: Values) => rotateProjectKey(api, { key_id: record.id, ...values }),
    stale: [['keys', useProjectId()]],
  })
  if (rotate.data) return <SecretOnce secret={rotate.data.key} notice={strings.key.once} onDone={onDone} />
  return (
    <SchemaForm
      schema={rotateFields}
      submitLabel={texts.rotate}
      isPending={rotate.isPending}
      error={rotate.error}
      onSubmit={values => rotate.mutate(values)}
      onCancel={onDone}
    >
      <Text size="sm" c="dimmed">
        {texts.rotateText}
      </Text>
    </SchemaForm>
  )
}

function Activity({ keyId }: { keyId: string }) {
  const usage = useQuery({
    queryKey: ['key', keyId, 'usage'],
    queryFn: async ({ signal }) => getProjectKeyUsage(api, { key_id: keyId }, { signal }),
  })
  return (
    <Loaded query={usage} action="project-keys:GetProjectKey">
      {({ days, last_action, last_used_at }) => (
        <Stack gap="sm">
          <Text component="div">
            {texts.used} {last_used_at ? <When at={last_used_at} /> : texts.never}
          </Text>
          {last_action && (
            <Text size="sm" component="div">
              {texts.lastAction} <span className="mono">{visible(last_action.action)}</span> ({last_action.status}),{' '}
              <When at={last_action.at} />
            </Text>
          )}
          {days.map(({ date, requests }) => (
            <Group key={date} justify="space-between">
              <Text size="sm" c="dimmed">
                {date}
              </Text>
              <Text size="sm">{texts.requests(requests)}</Text>
            </Group>
          ))}
        </Stack>
      )}
    </Loaded>
  )
}
