import rotateFields from 'fields:rotateProjectKey'
import { Badge, Button, Group, Modal, Stack, Text } from '@mantine/core'
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
import { IconKey, IconPlus } from '@tabler/icons-react'
import { usePolicyNames } from '#access.ts'
import { api } from '#api.ts'
import { ActionButton, FormButton, RowActions, useAction } from '#components/actions.tsx'
import { KeyForm } from '#components/key-form.tsx'
import { type Column, ListView, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { RecordPage } from '#components/record-page.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { SecretOnce } from '#components/secret.tsx'
import { Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.keys

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
          {isAllowed(getProjectKeyUsage) && (
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
      title: strings.expires,
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
      title: strings.actions,
      cell: row => (
        <RowActions>
          {isAllowed(updateProjectKey) && (
            <FormButton
              label={strings.edit}
              size="xs"
              variant="default"
              form={close => <KeyForm record={row} onDone={close} />}
            />
          )}
          {isAllowed(rotateProjectKey) && (
            <FormButton
              label={texts.rotate}
              size="xs"
              variant="default"
              form={close => <Rotate record={row} onDone={close} />}
            />
          )}
          {isAllowed(deleteProjectKey) && (
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
  const create = isAllowed(createProjectKey) && (
    <Button leftSection={<IconPlus size={16} />} onClick={creating.open}>
      {texts.create}
    </Button>
  )
  return (
    <Page title={strings.nav.keys} intro={texts.intro} actions={create}>
      <ListView
        label={strings.nav.keys}
        list={list}
        operation={listProjectKeys}
        columns={columns}
        empty={
          <Notice icon={<IconKey />} title={texts.empty} action={create} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
      {/* Outside of the list: with the first key the notice of the empty list goes, and what is in it. */}
      <Modal opened={isCreating} onClose={creating.close} title={texts.create} size="lg">
        {isCreating && <KeyForm onDone={creating.close} />}
      </Modal>
    </Page>
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
  return (
    <RecordPage queryKey={['key', keyId, 'usage']} get={getProjectKeyUsage} ids={{ key_id: keyId }}>
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
    </RecordPage>
  )
}
