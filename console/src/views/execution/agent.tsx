import { Button, Card, SimpleGrid, Stack, Tabs, Text } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import type { Agent, AgentVersion } from '@muster/client'
import {
  compareAgentVersions,
  createAgent,
  createAgentGeneration,
  deleteAgent,
  getAgent,
  getGenerationStatistics,
  getUsageTimeseries,
  listAgentVersions,
  restoreAgentVersion,
  updateAgent,
} from '@muster/client/operations'
import { IconEdit, IconPlayerPlay } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link, useNavigate, useSearch } from '@tanstack/react-router'
import { type ReactNode, Suspense } from 'react'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { ActionButton, Question } from '#components/actions.tsx'
import { DialogMenu } from '#components/dialog-menu.tsx'
import { onDemand } from '#components/on-demand.tsx'
import { Page } from '#components/page.tsx'
import { Facts, Part } from '#components/record.tsx'
import { References } from '#components/reference.tsx'
import { Loaded, Loading } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { Versions } from '#components/versions.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { AgentForm, readAgent } from './agent-form.tsx'
import { Release } from './agent-release.tsx'

const TurnCharts = onDemand(async () => (await import('#components/turn-charts.tsx')).default)

const texts = strings.agents

/** An agent: its record, its versions, and the form that changes it. */
export function AgentView() {
  const { agentId } = useIds()
  const [isEditing, editing] = useDisclosure()
  const agent = useQuery({
    queryKey: ['agent', agentId],
    queryFn: ({ signal }) => readAgent(agentId, signal),
    // Never replaces an open edit.
    enabled: !isEditing,
  })
  return (
    <Loaded query={agent} operation={getAgent}>
      {first =>
        isEditing ? (
          <Page title={visible(first.record.name ?? texts.unnamed)}>
            <AgentForm first={first} onDone={editing.close} onCancel={editing.close} />
          </Page>
        ) : (
          <AgentPage agent={first.record} onEdit={editing.open} />
        )
      }
    </Loaded>
  )
}

function AgentActions({ agent, onEdit }: { agent: Agent; onEdit: () => void }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  const { id } = agent
  return (
    <>
      {isAllowed(createAgentGeneration) && (
        <Button
          component={Link}
          to={`/p/${projectId}/playground?q=${id}`}
          variant="default"
          leftSection={<IconPlayerPlay size={16} />}
        >
          {texts.try}
        </Button>
      )}
      {isAllowed(updateAgent) && (
        <Button leftSection={<IconEdit size={16} />} onClick={onEdit}>
          {strings.edit}
        </Button>
      )}
      {isAllowed(deleteAgent) && (
        <DialogMenu
          label={strings.more}
          entries={[
            {
              title: strings.remove,
              content: close => (
                <Question
                  text={`${texts.delete(visible(agent.name ?? texts.unnamed))} ${texts.deleteText}`}
                  label={strings.remove}
                  color="red"
                  run={async () => deleteAgent(api, { agent_id: id })}
                  stale={[['agents']]}
                  onDone={() => void navigate({ to: `/p/${projectId}/agents` })}
                  close={close}
                />
              ),
            },
          ]}
        />
      )}
    </>
  )
}

function AgentPage({ agent, onEdit }: { agent: Agent; onEdit: () => void }) {
  const { tab = 'record' } = useSearch({ strict: false })
  const navigate = useNavigate()
  const isAllowed = usePermissions(agent.project_id)
  const hasCharts = isAllowed(getGenerationStatistics) || isAllowed(getUsageTimeseries)
  const { name, description } = agent
  return (
    <Page
      title={visible(name ?? texts.unnamed)}
      intro={description && visible(description)}
      actions={<AgentActions agent={agent} onEdit={onEdit} />}
    >
      <Tabs
        value={tab}
        onChange={next => void navigate({ to: '.', search: { tab: next ?? undefined }, replace: true })}
        keepMounted={false}
      >
        <Tabs.List mb="lg">
          <Tabs.Tab value="record">{strings.record}</Tabs.Tab>
          {hasCharts && <Tabs.Tab value="activity">{texts.activity}</Tabs.Tab>}
          <Tabs.Tab value="versions">{strings.versions}</Tabs.Tab>
          <Tabs.Tab value="json">{strings.json}</Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="record">
          <Record agent={agent} />
        </Tabs.Panel>
        <Tabs.Panel value="activity">
          <Suspense fallback={<Loading />}>
            <TurnCharts agentId={agent.id} />
          </Suspense>
        </Tabs.Panel>
        <Tabs.Panel value="versions">
          <AgentVersions agent={agent} />
        </Tabs.Panel>
        <Tabs.Panel value="json">
          <Value value={agent} label={strings.json} />
        </Tabs.Panel>
      </Tabs>
    </Page>
  )
}

function Field({ label, children }: { label: string; children: ReactNode }) {
  return (
    <Stack gap={2}>
      <Text size="sm" c="dimmed">
        {label}
      </Text>
      <Text component="div">{children}</Text>
    </Stack>
  )
}

function Record({ agent }: { agent: Agent }) {
  return (
    <Stack gap="lg">
      <Card withBorder padding="lg" radius="lg">
        <SimpleGrid cols={{ base: 2, sm: 4 }} spacing="lg">
          <Field label={texts.model}>
            {agent.model ? <span className="mono">{visible(agent.model)}</span> : texts.defaultModel}
          </Field>
          <Field label={strings.version}>{agent.version}</Field>
          <Field label={texts.tools}>{agent.tool_bindings?.length ?? 0}</Field>
          <Field label={texts.guardrails}>{agent.guardrail_ids?.length ?? 0}</Field>
          <Field label={texts.temperature}>{agent.temperature ?? texts.defaultValue}</Field>
          <Field label={texts.maxSteps}>{agent.max_steps ?? texts.defaultValue}</Field>
          <Field label={strings.created}>
            <When at={agent.created_at} />
          </Field>
          <Field label={strings.updated}>
            <When at={agent.updated_at} />
          </Field>
        </SimpleGrid>
        <Text size="sm" c="dimmed" mt="lg">
          {texts.id} <span className="mono">{agent.id}</span>
        </Text>
      </Card>
      <Card withBorder padding="lg" radius="lg">
        <Text fw={600} component="h2" size="md" mb="sm">
          {texts.instructions}
        </Text>
        {agent.instructions ? (
          <Text component="div" className="wrap">
            {visible(agent.instructions)}
          </Text>
        ) : (
          <Text c="dimmed">{texts.noInstructions}</Text>
        )}
      </Card>
      <Uses agent={agent} />
    </Stack>
  )
}

/** The records that an agent refers to, by name, and its inline tools. */
function Uses({ agent }: { agent: Agent }) {
  const { ai_provider_id, model_route_id, tool_bindings, guardrail_ids, knowledge_config } = agent
  const { document_ids, document_paths, memory_store_ids, write_memory_store_id } = knowledge_config ?? {}
  const records: [label: string, kind: string, ids: (string | null | undefined)[]][] = [
    [texts.providerField, 'ai_provider', [ai_provider_id]],
    [texts.route, 'model_route', [model_route_id]],
    [texts.tools, 'tool', (tool_bindings ?? []).map(({ tool_id }) => tool_id)],
    [texts.guardrails, 'guardrail', guardrail_ids ?? []],
    [texts.documents, 'document', document_ids ?? []],
    [texts.memoryStores, 'memory_store', memory_store_ids ?? []],
    [texts.writesTo, 'memory_store', [write_memory_store_id]],
  ]
  const inline = (tool_bindings ?? []).flatMap(({ tool }) => (tool ? [tool] : []))
  return (
    <Part title={texts.uses}>
      <Facts
        facts={[
          ...records.map(([label, kind, found]): [string, ReactNode] => {
            const ids = found.filter(id => typeof id === 'string')
            return [label, ids.length > 0 && <References key={label} kind={kind} ids={ids} />]
          }),
          [texts.folders, document_paths?.length && document_paths.map(visible).join(', ')],
          [texts.inlineTools, inline.length > 0 && inline.map(({ name }) => visible(name)).join(', ')],
        ]}
      />
    </Part>
  )
}

/** Returns what part of the callers a version serves. */
function served({ version: current, active_release: release }: Agent, version: number): string | null {
  if (!release) return version === current ? texts.live : null
  if (version === release.canary_version) return strings.release.canary
  return version === release.stable_version ? strings.release.stable : null
}

function AgentVersions({ agent }: { agent: Agent }) {
  const isAllowed = usePermissions(agent.project_id)
  const navigate = useNavigate()
  const mayTry = isAllowed(createAgent) && isAllowed(createAgentGeneration)
  const trySide = ({ version, config }: AgentVersion) => (
    <ActionButton
      label={texts.trySide}
      question={texts.trySideText(version)}
      stale={[['agents']]}
      run={async () => {
        const name = texts.copyOf(agent.name ?? texts.unnamed, version)
        const copy = await createAgent(api, { ...config, name, project_id: agent.project_id })
        await navigate({ to: `/p/${agent.project_id}/playground`, search: { q: agent.id, beside: copy.id } })
      }}
    />
  )
  return (
    <Versions
      queryKey={['agent', agent.id]}
      current={agent.version}
      ids={{ agent_id: agent.id }}
      stale={[['agent', agent.id]]}
      operations={{ list: listAgentVersions, compare: compareAgentVersions, restore: restoreAgentVersion }}
      stateOf={({ version }) => served(agent, version)}
      extra={row => row.version !== agent.version && mayTry && trySide(row)}
      above={rows => <Release agent={agent} versions={rows} />}
    />
  )
}
