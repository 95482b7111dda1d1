import { Button, Card, Center, Group, Loader, PasswordInput, Stack, Text, TextInput, Title } from '@mantine/core'
import { useForm } from '@mantine/form'
import { bootstrapUser } from '@muster/client/operations'
import { useMutation } from '@tanstack/react-query'
import { createContext, type ReactNode, useContext, useEffect, useState } from 'react'
import { anonymous, queries } from '#api.ts'
import { Mark } from '#components/mark.tsx'
import { FailureAlert } from '#components/states.tsx'
import * as strings from '#strings.ts'
import { type ConsoleConfig, readConfig } from './config.ts'
import { useIdleSignOut } from './idle.ts'
import { finishSignIn, pendingAddress, resume, type SignOutReason, startSignIn, whenSignedOut } from './tokens.ts'

type State =
  | { kind: 'wait' }
  | { kind: 'in'; config: ConsoleConfig }
  | { kind: 'bootstrap'; config: ConsoleConfig }
  | { kind: 'out'; reason?: SignOutReason; error?: unknown }

const Config = createContext<ConsoleConfig | null>(null)

/** Returns the settings of the deployment. */
export const useConfig = (): ConsoleConfig => useContext(Config) as ConsoleConfig

const CALLBACK = '/app/callback'

const here = (): string => `${location.pathname}${location.search}`

/** Completes a sign-in; its view is loaded meanwhile. */
async function enterAfterSignIn(preload: (address: string) => void): Promise<State> {
  const answer = location.href
  history.replaceState(null, '', '/app')
  preload(pendingAddress())
  const [config, returnTo] = await Promise.all([readConfig(), finishSignIn(answer)])
  history.replaceState(null, '', returnTo)
  return { kind: 'in', config }
}

/** Opens the console for a signed-in user, and signs others in. */
async function open(preload: (address: string) => void): Promise<State> {
  if (location.pathname === CALLBACK) return enterAfterSignIn(preload)
  const link = new URLSearchParams(location.hash.slice(1)).get('sign_in_link')
  if (link) history.replaceState(null, '', here())
  const config = await readConfig()
  const base = new URL(config.base_url)
  // Cookies and the answer of the sign-in belong to the public address.
  if (base.origin !== location.origin) {
    location.replace(`${base.origin}${here()}${link ? `#sign_in_link=${link}` : ''}`)
    return { kind: 'wait' }
  }
  if (!globalThis.isSecureContext) return { kind: 'out', error: new Error(strings.signIn.insecure) }
  if (await resume()) return { kind: 'in', config }
  if (config.bootstrap_open) return { kind: 'bootstrap', config }
  await startSignIn(config.base_url, here(), link)
  return { kind: 'wait' }
}

/** Shows the console to a signed-in user; else the sign-in. `preload` loads the view of an address. */
export function SignInGate({ preload, children }: { preload: (address: string) => void; children: ReactNode }) {
  const [state, setState] = useState<State>({ kind: 'wait' })
  const enter = () => {
    setState({ kind: 'wait' })
    open(preload).then(setState, error => setState({ kind: 'out', error }))
  }
  useEffect(() => {
    enter()
    whenSignedOut(reason => {
      void queries.cancelQueries()
      queries.clear()
      setState({ kind: 'out', reason })
    })
  }, [])
  if (state.kind === 'wait')
    return (
      <Center mih="100vh">
        <Loader role="status" aria-label={strings.signIn.wait} />
      </Center>
    )
  if (state.kind === 'out') return <SignedOut {...state} onEnter={enter} />
  if (state.kind === 'bootstrap')
    return (
      <Entrance title={strings.bootstrap.title}>
        <BootstrapForm onDone={() => void startSignIn(state.config.base_url, '/app')} />
      </Entrance>
    )
  return (
    <Config.Provider value={state.config}>
      <IdleSignOut minutes={state.config.idle_minutes} />
      {children}
    </Config.Provider>
  )
}

function IdleSignOut({ minutes }: { minutes: number }) {
  useIdleSignOut(minutes)
  return null
}

/** Frame of the page before anybody is signed in. */
function Entrance({ title, children }: { title: string; children: ReactNode }) {
  return (
    <Center mih="100vh" p="md" component="main">
      <Card withBorder padding="xl" radius="lg" w="100%" maw={420} shadow="sm">
        <Stack gap="md">
          <Group gap="sm">
            <Mark />
            <Title order={1} size="h3">
              {title}
            </Title>
          </Group>
          {children}
        </Stack>
      </Card>
    </Center>
  )
}

function SignedOut({ reason, error, onEnter }: { reason?: SignOutReason; error?: unknown; onEnter: () => void }) {
  return (
    <Entrance title={strings.signIn.title}>
      {error !== undefined && <FailureAlert error={error} title={strings.signIn.failed} />}
      {reason && <Text role="status">{strings.signIn[reason]}</Text>}
      <Text c="dimmed" size="sm">
        {strings.signIn.text}
      </Text>
      <Button onClick={onEnter} data-autofocus fullWidth>
        {strings.signIn.button}
      </Button>
    </Entrance>
  )
}

/** Creates the first administrator of a deployment. */
function BootstrapForm({ onDone }: { onDone: () => void }) {
  const form = useForm({
    initialValues: { username: '', password: '', repeat: '' },
    validate: {
      username: value => (value.trim() ? null : strings.bootstrap.username),
      password: value => (value.length < 8 ? strings.bootstrap.passwordHelp : null),
      repeat: (value, { password }) => (value === password ? null : strings.bootstrap.differs),
    },
  })
  const create = useMutation({
    mutationFn: async ({ username, password }: { username: string; password: string }) =>
      bootstrapUser(anonymous, { username, password }),
    onSuccess: onDone,
  })
  return (
    <form onSubmit={form.onSubmit(values => create.mutate(values))}>
      <Stack gap="md">
        <Text c="dimmed" size="sm">
          {strings.bootstrap.text}
        </Text>
        <TextInput label={strings.bootstrap.username} autoComplete="username" {...form.getInputProps('username')} />
        <PasswordInput
          label={strings.bootstrap.password}
          description={strings.bootstrap.passwordHelp}
          autoComplete="new-password"
          {...form.getInputProps('password')}
        />
        <PasswordInput label={strings.bootstrap.repeat} autoComplete="new-password" {...form.getInputProps('repeat')} />
        {create.error && <FailureAlert error={create.error} />}
        <Button type="submit" loading={create.isPending} fullWidth>
          {strings.bootstrap.button}
        </Button>
      </Stack>
    </form>
  )
}
