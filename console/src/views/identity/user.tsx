import identityFields from 'fields:createUserIdentity'
import passwordFields from 'fields:resetUserPassword'
import patchFields from 'fields:updateUser'
import { Badge, Button, Group, MultiSelect, Stack, Text } from '@mantine/core'
import type { User } from '@muster/client'
import {
  createUserIdentity,
  deleteUser,
  deleteUserIdentity,
  getUser,
  listAuthoredDefinitions,
  listUserIdentities,
  resetUserPassword,
  revokeUserTokens,
  setUserPolicies,
  updateUser,
} from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { usePolicyNames } from '#access.ts'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { ActionButton, FormButton, useAction } from '#components/actions.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import { Page } from '#components/page.tsx'
import { Facts, Section } from '#components/record.tsx'
import { RecordPage, RemoveButton } from '#components/record-page.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { FailureAlert, Loaded } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.users

/** A user: role, policies, company accounts, and what the user has written. */
export function UserView() {
  const { userId } = useIds()
  return (
    <RecordPage queryKey={['user', userId]} get={getUser} ids={{ user_id: userId }}>
      {record => <UserPage user={record} />}
    </RecordPage>
  )
}

function UserActions({ user }: { user: User }) {
  const { id, username, disabled_at } = user
  const isAllowed = usePermissions(useProjectId())
  return (
    <>
      {isAllowed(updateUser) && (
        <>
          <FormButton label={strings.edit} variant="default" form={close => <Edit user={user} onDone={close} />} />
          <ActionButton
            label={disabled_at ? texts.enable : texts.disable}
            size="sm"
            question={disabled_at ? undefined : texts.disableText(visible(username))}
            run={async () => updateUser(api, { user_id: id, disabled: !disabled_at })}
            stale={[['user', id], ['users']]}
          />
        </>
      )}
      <RemoveButton
        operation={deleteUser}
        ids={{ user_id: id }}
        question={texts.deleteText(visible(username))}
        stale={[['users']]}
        list="users"
      />
    </>
  )
}

function UserPage({ user }: { user: User }) {
  const { id, username, display_name, role, disabled_at, last_login_at, created_at, policy_ids } = user
  const isAllowed = usePermissions(useProjectId())
  return (
    <Page title={username} intro={display_name && visible(display_name)} actions={<UserActions user={user} />}>
      <Section title={texts.account}>
        <Facts
          facts={[
            [
              texts.role,
              <Badge key="role" variant="default">
                {texts.roles[role]}
              </Badge>,
            ],
            [strings.status, disabled_at ? texts.disabled : texts.active],
            [texts.lastLogin, last_login_at ? <When at={last_login_at} key="login" /> : strings.keys.never],
            [strings.created, <When at={created_at} key="created" />],
          ]}
        />
        <Text size="sm" c="dimmed" className="mono">
          {id}
        </Text>
        {isAllowed(resetUserPassword) && (
          <Group gap="sm">
            <FormButton
              label={texts.resetPassword}
              size="xs"
              variant="default"
              form={close => <ResetPassword userId={id} onDone={close} />}
            />
            <ActionButton
              label={texts.endSessions}
              question={texts.endSessionsText}
              run={async () => revokeUserTokens(api, { user_id: id })}
              message={texts.ended}
            />
          </Group>
        )}
      </Section>
      {role === 'admin' ? (
        <Section title={strings.nav.policies}>
          <Text c="dimmed">{texts.adminText}</Text>
        </Section>
      ) : (
        <UserPolicies key={policy_ids.join()} user={user} />
      )}
      {isAllowed(listUserIdentities) && <Identities userId={id} />}
      <Authored userId={id} />
    </Page>
  )
}

function UserPolicies({ user }: { user: User }) {
  const projectId = useProjectId()
  const mayAttach = usePermissions(projectId)(setUserPolicies)
  const { options = [] } = usePolicyNames(projectId)
  const [chosen, setChosen] = useState(user.policy_ids)
  const save = useAction({
    run: async () => setUserPolicies(api, { user_id: user.id, policy_ids: chosen }),
    stale: [['user', user.id], ['users'], ['policy']],
    message: texts.policiesSaved,
  })
  return (
    <Section title={strings.nav.policies}>
      <Text size="sm" c="dimmed">
        {texts.policiesText}
      </Text>
      <MultiSelect
        aria-label={strings.nav.policies}
        data={options}
        value={chosen}
        onChange={setChosen}
        disabled={!mayAttach}
        searchable
        placeholder={chosen.length === 0 ? texts.noPolicies : undefined}
        nothingFoundMessage={strings.nothingFound}
      />
      {save.error && <FailureAlert error={save.error} />}
      {mayAttach && (
        <Group>
          <Button
            size="xs"
            loading={save.isPending}
            disabled={chosen.join() === user.policy_ids.join()}
            onClick={() => save.mutate()}
          >
            {strings.save}
          </Button>
        </Group>
      )}
    </Section>
  )
}

function Edit({ user, onDone }: { user: User; onDone: () => void }) {
  const save = useAction({
    run: async (values: Values) => updateUser(api, { user_id: user.id, ...values }),
    stale: [['user', user.id], ['users']],
    onDone,
  })
  return (
    <SchemaForm
      schema={patchFields}
      initial={user as Values}
      omit={['disabled']}
      isPending={save.isPending}
      error={save.error}
      onSubmit={values => save.mutate(values)}
      onCancel={onDone}
    />
  )
}

function ResetPassword({ userId, onDone }: { userId: string; onDone: () => void }) {
  const reset = useAction({
    run: async (values: Values) =>
      resetUserPassword(api, { user_id: userId, ...values } as Parameters<typeof resetUserPassword>[1]),
    message: texts.passwordReset,
    onDone,
  })
  return (
    <SchemaForm
      schema={passwordFields}
      submitLabel={texts.resetPassword}
      isPending={reset.isPending}
      error={reset.error}
      onSubmit={values => reset.mutate(values)}
      onCancel={onDone}
    >
      <Text size="sm" c="dimmed">
        {texts.resetText}
      </Text>
    </SchemaForm>
  )
}

function Identities({ userId }: { userId: string }) {
  const isAllowed = usePermissions(useProjectId())
  const key = ['user', userId, 'identities']
  const identities = useQuery({
    queryKey: key,
    queryFn: async ({ signal }) => (await listUserIdentities(api, { user_id: userId }, { signal }).page()).data,
  })
  const link = isAllowed(createUserIdentity) && (
    <FormButton
      label={texts.link}
      size="xs"
      variant="default"
      form={close => <LinkIdentity userId={userId} onDone={close} />}
    />
  )
  return (
    <Section title={texts.identities} actions={link}>
      <Loaded query={identities} operation={listUserIdentities} rows={1}>
        {rows =>
          rows.length === 0 ? (
            <Text c="dimmed">{texts.noIdentities}</Text>
          ) : (
            <Stack gap="sm">
              {rows.map(({ issuer, subject, label }) => (
                <Group key={`${issuer} ${subject}`} justify="space-between" gap="sm">
                  <div>
                    <Text>{visible(label ?? subject)}</Text>
                    <Text size="sm" c="dimmed">
                      {visible(issuer)}
                    </Text>
                  </div>
                  {isAllowed(deleteUserIdentity) && (
                    <ActionButton
                      label={texts.unlink}
                      color="red"
                      question={texts.unlinkText}
                      run={async () => deleteUserIdentity(api, { user_id: userId, issuer, subject })}
                      stale={[key]}
                    />
                  )}
                </Group>
              ))}
            </Stack>
          )
        }
      </Loaded>
    </Section>
  )
}

function LinkIdentity({ userId, onDone }: { userId: string; onDone: () => void }) {
  const link = useAction({
    run: async (values: Values) =>
      createUserIdentity(api, { user_id: userId, ...values } as Parameters<typeof createUserIdentity>[1]),
    stale: [['user', userId, 'identities']],
    onDone,
  })
  return (
    <SchemaForm
      schema={identityFields}
      submitLabel={texts.link}
      isPending={link.isPending}
      error={link.error}
      onSubmit={values => link.mutate(values)}
      onCancel={onDone}
    />
  )
}

function Authored({ userId }: { userId: string }) {
  const authored = useQuery({
    queryKey: ['user', userId, 'authored'],
    queryFn: async ({ signal }) => listAuthoredDefinitions(api, { user_id: userId, limit: 25 }, { signal }).page(),
  })
  if (!authored.data?.total) return null
  return (
    <Section title={texts.authored(authored.data.total)}>
      <Text size="sm" c="dimmed">
        {texts.authoredText}
      </Text>
      <Stack gap="xs">
        {authored.data.data.map(({ kind, id, name, project_id }) => (
          <Group key={id} gap="sm">
            <Badge variant="default">{visible(kind)}</Badge>
            {name && <Text size="sm">{visible(name)}</Text>}
            <EntityLink kind={kind} id={id} projectId={project_id} />
          </Group>
        ))}
      </Stack>
    </Section>
  )
}
