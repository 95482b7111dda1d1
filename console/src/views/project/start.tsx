import { Badge, Button, Card, Group, Modal, Progress, Stack, Text, ThemeIcon } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import {
  checkAiProvider,
  createAgent,
  createAgentGeneration,
  createAiProvider,
  listAgents,
  listAiProviders,
  listDocuments,
  listFiles,
  listGenerations,
  listProjectKeys,
  listTools,
  listWebhooks,
} from '@muster/client/operations'
import { IconCheck, IconCircle, IconConfetti } from '@tabler/icons-react'
import { useMutation, useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { type ReactNode, useState } from 'react'
import { api, every, POLL_MS } from '#api.ts'
import { KeyForm } from '#components/key-form.tsx'
import { Page } from '#components/page.tsx'
import { ProviderForm } from '#components/provider-form.tsx'
import { FailureAlert, Loading, Notice, Refused } from '#components/states.tsx'
import { CopyText, TextButton, visible } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { type Operation, usePermissions, useProjectId } from '#projects.ts'
import { useConfig } from '#session/gate.tsx'
import * as strings from '#strings.ts'

const texts = strings.start

const hidden = new Set<string>()

type First = { data: unknown[] } | null

/** The first record of each list that a step depends on; null if the user may not see it. */
function useFirst<T extends { data: unknown[] }>(
  name: string,
  operation: Operation,
  read: (args: { project_id: string; limit: number }, signal: AbortSignal) => PromiseLike<T>,
) {
  const projectId = useProjectId()
  const mayRead = usePermissions(projectId)(operation)
  return useQuery<T | null>({
    queryKey: ['start', name, projectId, mayRead],
    queryFn: async ({ signal }) => (mayRead ? read({ project_id: projectId, limit: 1 }, signal) : null),
    enabled: mayRead !== undefined,
    refetchInterval: every(POLL_MS),
  })
}

const has = (query: { data?: First }): boolean => (query.data?.data.length ?? 0) > 0

/** Checklist of a new project: each step is derived from what exists. */
export function Start() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { base_url } = useConfig()
  const [providerForm, provider] = useDisclosure()
  const [keyForm, key] = useDisclosure()
  const [isHidden, setHidden] = useState(hidden.has(projectId))
  const providers = useFirst('providers', listAiProviders, (args, signal) =>
    listAiProviders(api, args, { signal }).page(),
  )
  const agents = useFirst('agents', listAgents, (args, signal) => listAgents(api, args, { signal }).page())
  const replies = useFirst('replies', listGenerations, (args, signal) =>
    listGenerations(api, { ...args, status: ['completed'] }, { signal }).page(),
  )
  const mayListKeys = isAllowed(listProjectKeys)
  const keys = useQuery({
    queryKey: ['start', 'keys', projectId, mayListKeys],
    queryFn: async ({ signal }) => {
      if (!mayListKeys) return []
      const { data } = await listProjectKeys(api, { limit: 100 }, { signal }).page()
      return data.filter(({ project_id }) => project_id === projectId)
    },
    enabled: mayListKeys !== undefined,
    refetchInterval: every(POLL_MS),
  })
  const documents = useFirst('documents', listDocuments, (args, signal) => listDocuments(api, args, { signal }).page())
  const tools = useFirst('tools', listTools, (args, signal) => listTools(api, args, { signal }).page())
  const webhooks = useFirst('webhooks', listWebhooks, (args, signal) => listWebhooks(api, args, { signal }).page())

  const agentId = (agents.data?.data[0] as { id: string } | undefined)?.id ?? 'AGENT_ID'
  const curl = `curl '${base_url}/api/v1/agents/${agentId}/generate?wait=true' \\
  -H "Authorization: Bearer $MUSTER_KEY" \\
  -H 'Content-Type: application/json' \\
  -d '{"prompt":"Hello"}'`
  const code = `import { Muster } from '@muster/client'

const muster = new Muster({ baseUrl: '${base_url}', token: process.env.MUSTER_KEY })
const turn = await muster.agents.generate({ agent_id: '${agentId}', prompt: 'Hello', wait: true })
console.log(turn.output.content)`
  const [firstProvider] = (providers.data?.data ?? []) as { id: string }[]
  const isRequested = (keys.data ?? []).some(({ last_used_at }) => last_used_at !== null)

  const steps: StepProps[] = [
    {
      title: texts.provider,
      text: texts.providerText,
      isDone: has(providers),
      action: firstProvider ? (
        <ProviderCheck id={firstProvider.id} />
      ) : (
        isAllowed(createAiProvider) && <Button onClick={provider.open}>{texts.provider}</Button>
      ),
    },
    {
      title: texts.agent,
      text: texts.agentText,
      isDone: has(agents),
      action: !has(agents) && isAllowed(createAgent) && (
        <Button component={Link} to={`/p/${projectId}/agents/new`} variant={has(providers) ? 'filled' : 'default'}>
          {strings.agents.create}
        </Button>
      ),
    },
    {
      title: texts.reply,
      text: texts.replyText,
      isDone: has(replies),
      action: !has(replies) && has(agents) && isAllowed(createAgentGeneration) && (
        <Button component={Link} to={`/p/${projectId}/playground`}>
          {strings.agents.try}
        </Button>
      ),
    },
    {
      title: texts.key,
      text: texts.keyText,
      isDone: (keys.data ?? []).length > 0,
      action: !keys.data?.length && (
        <Button onClick={key.open} variant={has(replies) ? 'filled' : 'default'}>
          {texts.key}
        </Button>
      ),
    },
    {
      title: texts.request,
      text: texts.requestText,
      isDone: isRequested,
      body: !isRequested && (
        <>
          <Value value={curl} label={`${texts.request}: curl`} />
          <CopyText text={curl} label={`${strings.playground.copyAs} curl`} />
          <Value value={code} label={`${texts.request}: TypeScript`} />
          <CopyText text={code} label={`${strings.playground.copyAs} TypeScript`} />
        </>
      ),
    },
  ]
  const opener = (view: string, operation: Operation, label: string) =>
    isAllowed(operation) && (
      <Button component={Link} to={`/p/${projectId}/${view}`} variant="default">
        {label}
      </Button>
    )
  const optional: StepProps[] = [
    {
      title: texts.document,
      text: texts.documentText,
      isDone: has(documents),
      action: opener('files', listFiles, strings.nav.files),
    },
    {
      title: texts.tool,
      text: texts.toolText,
      isDone: has(tools),
      action: opener('tools', listTools, strings.nav.tools),
    },
    {
      title: texts.webhook,
      text: texts.webhookText,
      isDone: has(webhooks),
      action: opener('webhooks', listWebhooks, strings.nav.webhooks),
    },
  ]
  const done = steps.filter(({ isDone }) => isDone).length
  const refused = [listAiProviders, listAgents, listGenerations].find(operation => isAllowed(operation) === false)
  if (refused)
    return (
      <Page title={strings.nav.start} intro={texts.intro}>
        <Refused operation={refused} />
      </Page>
    )
  const isKnown = [providers, agents, replies, keys].every(({ data, error }) => data !== undefined || error)
  const failure = [providers, agents, replies].find(({ error }) => error)?.error
  return (
    <Page title={strings.nav.start} intro={texts.intro}>
      {!isKnown && <Loading />}
      {failure && <FailureAlert error={failure} title={strings.failed.title} />}
      {isKnown && !failure && (isHidden || done === steps.length) && (
        <Notice icon={<IconConfetti />} title={texts.done} color="teal">
          {texts.complete}
        </Notice>
      )}
      {isKnown && !failure && !isHidden && done < steps.length && (
        <Card withBorder padding="lg" radius="lg">
          <Stack gap="md">
            <Group justify="space-between">
              <Text fw={600}>{texts.progress(done, steps.length)}</Text>
              <TextButton
                onClick={() => {
                  hidden.add(projectId)
                  setHidden(true)
                }}
              >
                {texts.hide}
              </TextButton>
            </Group>
            <Progress value={(done / steps.length) * 100} aria-label={texts.progress(done, steps.length)} radius="xl" />
            <Stack component="ol" gap="lg" m={0} p={0} style={{ listStyle: 'none' }}>
              {steps.map(step => (
                <Step key={step.title} {...step} />
              ))}
            </Stack>
          </Stack>
        </Card>
      )}
      {isKnown && !failure && optional.some(({ isDone }) => !isDone) && (
        <Card withBorder padding="lg" radius="lg">
          <Text fw={600} mb="md" component="h2" size="md">
            {texts.optional}
          </Text>
          <Stack component="ul" gap="lg" m={0} p={0} style={{ listStyle: 'none' }}>
            {optional.map(step => (
              <Step key={step.title} {...step} />
            ))}
          </Stack>
        </Card>
      )}
      <Modal opened={providerForm} onClose={provider.close} title={strings.provider.title} size="lg">
        <ProviderForm projectId={projectId} onDone={provider.close} />
      </Modal>
      <Modal opened={keyForm} onClose={key.close} title={strings.key.title} size="lg">
        <KeyForm onDone={key.close} />
      </Modal>
    </Page>
  )
}

type StepProps = { title: string; text: string; isDone: boolean; action?: ReactNode; body?: ReactNode }

function Step({ title, text, isDone, action, body }: StepProps) {
  return (
    <Group component="li" align="flex-start" wrap="nowrap" gap="md">
      <ThemeIcon radius="xl" size={28} variant={isDone ? 'filled' : 'default'} color={isDone ? 'teal.9' : undefined}>
        {isDone ? <IconCheck size={18} aria-hidden /> : <IconCircle size={14} aria-hidden />}
      </ThemeIcon>
      <Stack gap={6} flex={1} miw={0}>
        <Group justify="space-between" gap="sm">
          <Stack gap={0} flex="1 1 240px">
            <Group gap="xs">
              <Text fw={600}>{title}</Text>
              {isDone && (
                <Badge variant="default" size="sm">
                  {texts.done}
                </Badge>
              )}
            </Group>
            <Text size="sm" c="dimmed">
              {text}
            </Text>
          </Stack>
          {action}
        </Group>
        {body}
      </Stack>
    </Group>
  )
}

/** Requests a reply of one token. */
function ProviderCheck({ id }: { id: string }) {
  const check = useMutation({ mutationFn: async () => checkAiProvider(api, { ai_provider_id: id }) })
  const { data } = check
  return (
    <Group gap="sm">
      {data && (
        <Text size="sm" role="status">
          {data.ok ? texts.checkOk(data.model, data.latency_ms) : visible(data.error?.message ?? '')}
        </Text>
      )}
      <Button variant="default" size="xs" loading={check.isPending} onClick={() => check.mutate()}>
        {texts.test}
      </Button>
    </Group>
  )
}
