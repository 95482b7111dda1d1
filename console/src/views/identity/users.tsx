import createFields from 'fields:createUser'
import { Badge, Group, Text } from '@mantine/core'
import type { User } from '@muster/client'
import { createUser, listUsers } from '@muster/client/operations'
import { IconPlus, IconUsers } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { api } from '#api.ts'
import { FormButton, useAction } from '#components/actions.tsx'
import { ChoiceField, type Column, ListView, RecordLink, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.users
const ROLES = Object.entries(texts.roles).map(([value, label]) => ({ value, label }))

const userColumns = (projectId: string): Column<User>[] => [
  {
    title: texts.name,
    isWide: true,
    cell: ({ id, username, display_name, disabled_at }) => (
      <>
        <Group gap="xs">
          <RecordLink to={`/p/${projectId}/users/${id}`}>{visible(username)}</RecordLink>
          {disabled_at && (
            <Badge variant="dot" color="gray">
              {texts.disabled}
            </Badge>
          )}
        </Group>
        {display_name && (
          <Text size="sm" c="dimmed">
            {visible(display_name)}
          </Text>
        )}
      </>
    ),
  },
  { title: texts.role, cell: ({ role }) => <Badge variant="default">{texts.roles[role]}</Badge> },
  {
    title: strings.nav.policies,
    cell: ({ role, policy_ids }) => (role === 'admin' ? strings.none : policy_ids.length),
  },
  {
    title: texts.lastLogin,
    cell: ({ last_login_at }) => (last_login_at ? <When at={last_login_at} /> : strings.keys.never),
  },
]

/** People who sign in to the deployment. */
export function Users() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const list = useList<User>(['users', 'list'], async ({ q, role }, bounds, signal) =>
    listUsers(api, { username: q, role: role as User['role'] | undefined, ...bounds }, { signal }).page(),
  )
  const columns = userColumns(projectId)
  const create = isAllowed(createUser) && (
    <FormButton label={texts.create} leftSection={<IconPlus size={16} />} form={close => <Create onDone={close} />} />
  )
  return (
    <Page title={strings.nav.users} intro={texts.intro} actions={create}>
      <ListView
        label={strings.nav.users}
        list={list}
        operation={listUsers}
        columns={columns}
        fields={
          <>
            <SearchField />
            <ChoiceField name="role" label={texts.role} choices={ROLES} />
          </>
        }
        empty={
          <Notice icon={<IconUsers />} title={texts.empty} action={create}>
            {texts.intro}
          </Notice>
        }
      />
    </Page>
  )
}

function Create({ onDone }: { onDone: () => void }) {
  const projectId = useProjectId()
  const navigate = useNavigate()
  const create = useAction({
    run: async (values: Values) => createUser(api, values as Parameters<typeof createUser>[1]),
    stale: [['users']],
    onDone: ({ id }) => {
      onDone()
      void navigate({ to: `/p/${projectId}/users/${id}` })
    },
  })
  return (
    <SchemaForm
      schema={createFields}
      start={{ role: 'user' }}
      submitLabel={strings.create}
      isPending={create.isPending}
      error={create.error}
      onSubmit={values => create.mutate(values)}
      onCancel={onDone}
    />
  )
}
