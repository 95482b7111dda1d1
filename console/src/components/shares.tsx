import createFields from 'fields:createShare'
import { Badge, Group, Stack, Text } from '@mantine/core'
import type { Share, ShareInput } from '@muster/client'
import {
  acceptShare,
  callTool,
  createShare,
  listShares,
  resumeShare,
  revokeShare,
  suspendShare,
} from '@muster/client/operations'
import { IconShare } from '@tabler/icons-react'
import { api } from '#api.ts'
import { usePermissions, useProjectId, useProjects } from '#projects.ts'
import * as strings from '#strings.ts'
import { ActionButton, FormButton, useAction } from './actions.tsx'
import { type Column, ListView, useList } from './list.tsx'
import { SchemaForm } from './schema-form.tsx'
import { Notice } from './states.tsx'
import { visible, When } from './text.tsx'

const texts = strings.shares

const stateOf = ({ revoked_at, suspended_at, acceptance }: Share): string => {
  if (revoked_at) return texts.states.revoked
  if (suspended_at) return texts.states.suspended
  return acceptance ? texts.states.accepted : texts.states.offered
}

/** Shares that the project has made or may accept; of one resource where it is given. */
export function Shares({ resource }: { resource?: string }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { data: projects } = useProjects()
  const stale = [['shares', projectId]]
  const nameOf = (id: string) =>
    id === '*' ? texts.everybody : visible(projects?.data.find(project => project.id === id)?.name ?? id)
  const list = useList<Share>(['shares', projectId, resource], async (_, bounds, signal) => {
    const of = resource ? { resource, role: 'publisher' as const } : {}
    return listShares(api, { project_id: projectId, ...of, ...bounds }, { signal }).page()
  })
  const columns: Column<Share>[] = [
    {
      title: texts.resource,
      isWide: true,
      cell: ({ resource: name, projection, actions }) => (
        <Stack gap={0}>
          <Text fw={600}>{visible(projection?.name ?? name)}</Text>
          <Text size="sm" c="dimmed" className="mono">
            {actions.map(visible).join(', ')}
          </Text>
        </Stack>
      ),
    },
    {
      title: texts.direction,
      cell: ({ project_id, grantee }) =>
        project_id === projectId ? texts.to(nameOf(grantee)) : texts.from(nameOf(project_id)),
    },
    { title: strings.state, cell: share => <Badge variant="default">{stateOf(share)}</Badge> },
    { title: strings.expires, cell: ({ expires_at }) => <When at={expires_at} /> },
    {
      title: strings.actions,
      cell: share => {
        const { id, revoked_at, suspended_at, acceptance } = share
        if (revoked_at) return strings.none
        if (share.project_id !== projectId)
          return acceptance || !isAllowed(acceptShare) ? (
            strings.none
          ) : (
            <ActionButton
              label={texts.accept}
              run={async () => acceptShare(api, { share_id: id, project_id: projectId })}
              stale={stale}
            />
          )
        return (
          <Group gap="xs">
            {!suspended_at && isAllowed(suspendShare) && (
              <ActionButton label={texts.suspend} run={async () => suspendShare(api, { share_id: id })} stale={stale} />
            )}
            {suspended_at && isAllowed(resumeShare) && (
              <ActionButton
                label={strings.shell.resume}
                run={async () => resumeShare(api, { share_id: id })}
                stale={stale}
              />
            )}
            {isAllowed(revokeShare) && (
              <ActionButton
                label={texts.revoke}
                color="red"
                question={texts.revokeText}
                run={async () => revokeShare(api, { share_id: id })}
                stale={stale}
              />
            )}
          </Group>
        )
      },
    },
  ]
  const create = resource && isAllowed(createShare) && (
    <FormButton
      label={texts.create}
      size="xs"
      leftSection={<IconShare size={16} />}
      form={close => <ShareForm resource={resource} onDone={close} />}
    />
  )
  return (
    <Stack gap="md">
      <ListView
        label={texts.title}
        list={list}
        operation={listShares}
        columns={columns}
        empty={
          <Notice icon={<IconShare />} title={texts.empty} action={create} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
      {(list.query.data?.total ?? 0) > 0 && create && <Group>{create}</Group>}
    </Stack>
  )
}

function ShareForm({ resource, onDone }: { resource: string; onDone: () => void }) {
  const projectId = useProjectId()
  const { data: projects } = useProjects()
  const others = (projects?.data ?? []).filter(({ id }) => id !== projectId)
  const create = useAction({
    run: async (values: Partial<ShareInput>) =>
      createShare(api, {
        grantee: '',
        ...values,
        project_id: projectId,
        resource,
        actions: [callTool.action as string],
      }),
    stale: [['shares', projectId]],
    onDone,
  })
  return (
    <SchemaForm
      schema={createFields}
      only={['grantee', 'cap', 'expires_at']}
      options={
        others.length > 0 ? { grantee: others.map(({ id, name }) => ({ value: id, label: visible(name) })) } : {}
      }
      submitLabel={texts.create}
      isPending={create.isPending}
      error={create.error}
      onSubmit={create.mutate}
      onCancel={onDone}
    />
  )
}
