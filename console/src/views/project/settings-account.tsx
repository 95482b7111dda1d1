import { Button, Group, PasswordInput, Stack, Text } from '@mantine/core'
import { useForm } from '@mantine/form'
import { changeOwnPassword, revokeOwnTokens } from '@muster/client/operations'
import { api } from '#api.ts'
import { ActionButton, useAction } from '#components/actions.tsx'
import { Facts, Section } from '#components/record.tsx'
import { FailureAlert, Loaded } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { useMe } from '#projects.ts'
import { signOut } from '#session/tokens.ts'
import * as strings from '#strings.ts'

const texts = strings.settings

/** The account of the user: password and sign-ins. */
export function Account() {
  const me = useMe()
  return (
    <Loaded query={me}>
      {({ username, role, display_name, last_login_at }) => (
        <Stack gap="lg">
          <Section title={texts.you}>
            <Facts
              facts={[
                [strings.bootstrap.username, visible(username)],
                [texts.displayName, display_name && visible(display_name)],
                [strings.users.role, strings.users.roles[role]],
                [strings.users.lastLogin, last_login_at && <When at={last_login_at} key="login" />],
              ]}
            />
          </Section>
          <Password />
          <Section title={texts.signIns}>
            <Text size="sm" c="dimmed">
              {texts.signInsText}
            </Text>
            <Group>
              <ActionButton
                label={texts.signOutAll}
                question={texts.signInsText}
                run={async () => revokeOwnTokens(api, {})}
                onDone={() => void signOut('chosen')}
              />
            </Group>
          </Section>
        </Stack>
      )}
    </Loaded>
  )
}

function Password() {
  const form = useForm({
    initialValues: { current: '', next: '', repeat: '' },
    validate: {
      current: value => (value ? null : strings.form.required),
      next: value => (value ? null : strings.form.required),
      repeat: (value, { next }) => (value === next ? null : strings.bootstrap.differs),
    },
  })
  const change = useAction({
    run: async ({ current, next }: typeof form.values) =>
      changeOwnPassword(api, { current_password: current, new_password: next }),
    message: texts.passwordChanged,
    // All tokens have ended with the password.
    onDone: () => void signOut('chosen'),
  })
  return (
    <Section title={texts.password}>
      <form onSubmit={form.onSubmit(values => change.mutate(values))}>
        <Stack gap="md" maw={420}>
          <PasswordInput
            label={texts.currentPassword}
            autoComplete="current-password"
            {...form.getInputProps('current')}
          />
          <PasswordInput label={texts.newPassword} autoComplete="new-password" {...form.getInputProps('next')} />
          <PasswordInput
            label={strings.bootstrap.repeat}
            autoComplete="new-password"
            {...form.getInputProps('repeat')}
          />
          <Text size="sm" c="dimmed">
            {texts.passwordText}
          </Text>
          {change.error && <FailureAlert error={change.error} />}
          <Group>
            <Button type="submit" loading={change.isPending}>
              {texts.changePassword}
            </Button>
          </Group>
        </Stack>
      </form>
    </Section>
  )
}
