import { Badge, Group, Text } from '@mantine/core'
import type { OauthClient, OauthGrant } from '@muster/client'
import { deleteOauthClient, listOauthClients, listOauthGrants, revokeOauthGrant } from '@muster/client/operations'
import { IconPlugConnected } from '@tabler/icons-react'
import { useUserNames } from '#access.ts'
import { api } from '#api.ts'
import { ActionButton } from '#components/actions.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import { type Column, ListView, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs } from '#components/record.tsx'
import { Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { useMe, usePermissions, useProjectId, useProjects } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.apps

/** Applications that act for users by OAuth: what users have granted, and the clients of the deployment. */
export function Apps() {
  const isAllowed = usePermissions(useProjectId())
  return (
    <Page title={strings.nav.apps} intro={texts.intro}>
      <AddressTabs
        tabs={[
          { value: 'grants', title: texts.grants, content: () => <Grants /> },
          ...(isAllowed(listOauthClients)
            ? [{ value: 'clients', title: texts.clients, content: () => <Clients /> }]
            : []),
        ]}
      />
    </Page>
  )
}

function Grants() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { data: me } = useMe()
  const { data: projects } = useProjects()
  const { nameOf } = useUserNames(projectId)
  const list = useList<OauthGrant>(['oauth', 'grants'], async (_, bounds, signal) =>
    listOauthGrants(api, bounds, { signal }).page(),
  )
  const columns: Column<OauthGrant>[] = [
    {
      title: texts.app,
      isWide: true,
      cell: ({ client_id, client_name, scopes }) => (
        <>
          <Text fw={600}>{visible(client_name ?? client_id)}</Text>
          <Group gap={6} mt={4}>
            {scopes.map(scope => (
              <Badge variant="default" key={scope}>
                {visible(scope)}
              </Badge>
            ))}
          </Group>
        </>
      ),
    },
    {
      title: texts.user,
      cell: ({ user_id, project_id }) => (
        <>
          {user_id === me?.id ? (
            texts.you
          ) : (
            <EntityLink kind="user" id={user_id} projectId={projectId} name={nameOf(user_id)} />
          )}
          {project_id && (
            <Text size="sm" c="dimmed">
              {visible(projects?.data.find(({ id }) => id === project_id)?.name ?? project_id)}
            </Text>
          )}
        </>
      ),
    },
    {
      title: texts.used,
      cell: ({ last_used_at }) => (last_used_at ? <When at={last_used_at} /> : strings.keys.never),
    },
    { title: strings.expires, cell: ({ expires_at }) => <When at={expires_at} /> },
    {
      title: strings.actions,
      cell: ({ id, client_id, client_name }) =>
        isAllowed(revokeOauthGrant) && (
          <ActionButton
            label={strings.keys.revoke}
            color="red"
            question={texts.revokeText(visible(client_name ?? client_id))}
            run={async () => revokeOauthGrant(api, { grant_id: id })}
            stale={[['oauth']]}
          />
        ),
    },
  ]
  return (
    <ListView
      label={texts.grants}
      list={list}
      operation={listOauthGrants}
      columns={columns}
      empty={
        <Notice icon={<IconPlugConnected />} title={texts.empty}>
          {texts.emptyText}
        </Notice>
      }
    />
  )
}

function Clients() {
  const isAllowed = usePermissions(useProjectId())
  const list = useList<OauthClient>(['oauth', 'clients'], async (_, bounds, signal) =>
    listOauthClients(api, bounds, { signal }).page(),
  )
  const columns: Column<OauthClient>[] = [
    {
      title: texts.app,
      isWide: true,
      cell: ({ id, client_name, redirect_uris }) => (
        <>
          <Text fw={600}>{visible(client_name ?? id)}</Text>
          <Text size="sm" c="dimmed" className="mono">
            {visible(id)}
          </Text>
          <Text size="sm" c="dimmed" lineClamp={2}>
            {visible(redirect_uris.join(', '))}
          </Text>
        </>
      ),
    },
    { title: texts.kind, cell: ({ kind }) => <Badge variant="default">{texts.kinds[kind]}</Badge> },
    { title: texts.grants, cell: ({ grants }) => grants },
    {
      title: texts.used,
      cell: ({ last_used_at }) => (last_used_at ? <When at={last_used_at} /> : strings.keys.never),
    },
    {
      title: strings.actions,
      cell: ({ id, client_name }) =>
        isAllowed(deleteOauthClient) && (
          <ActionButton
            label={strings.remove}
            color="red"
            question={texts.deleteText(visible(client_name ?? id))}
            run={async () => deleteOauthClient(api, { client_id: id })}
            stale={[['oauth']]}
          />
        ),
    },
  ]
  return (
    <ListView
      label={texts.clients}
      list={list}
      operation={listOauthClients}
      columns={columns}
      empty={
        <Notice icon={<IconPlugConnected />} title={texts.noClients}>
          {texts.noClientsText}
        </Notice>
      }
    />
  )
}
