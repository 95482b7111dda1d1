import { Button, Card, Group, Menu, Modal, SimpleGrid, Stack, Tabs, Text } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import type { Agent, AgentVersion } from '@muster/client'
import {
  compareAgentVersions,
  createAgent,
  deleteAgent,
  getAgent,
  listAgentVersions,
  restoreAgentVersion,
} from '@muster/client/operations'
import { IconDots, IconEdit, IconPlayerPlay } from '@tabler/icons-react'
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { Link, useNavigate, useParams, useSearch } from '@tanstack/react-router'
import type { ReactNode } from 'react'
import { api } from '../api.ts'
import { ActionButton } from '../components/actions.tsx'
import { Page } from '../components/page.tsx'
import { FailureAlert, Loaded } from '../components/states.tsx'
import { visible, When } from '../components/text.tsx'
import { Value } from '../components/value.tsx'
import { Versions } from '../components/versions.tsx'
import { usePermissions, useProjectId } from '../projects.ts'
import * as strings from '../strings.ts'
import { AgentForm } from './agent-form.tsx'
import { Release } from './agent-release.tsx'

/** An agent: its record, its versions, and the form that changes it. */
export function AgentView() {
  const projectId = useProjectId()
  const { agentId } = useParams({ strict: false }) as { agentId: string }
  const { tab = 'record' } = useSearch({ strict: false })
  const navigate = useNavigate()
  const isAllowed = usePermissions(projectId)
  const [isEditing, editing] = useDisclosure()
  const [isDeleting, deleting] = useDisclosure()
  const agent = useQuery({
    queryKey: ['agent', agentId],
    queryFn: async ({ signal }) => {
      const { data, etag } = await getAgent(api, { agent_id: agentId }, { signal }).withResponse()
      return { agent: data as Agent, etag }
    },
    // Never replaces what is being edited.
    enabled: !isEditing,
  })
  return (
    <Loaded query={agent} action="agents:GetAgent">
      {({ agent: record, etag }) => {
        const name = visible(record.name ?? strings.agents.unnamed)
        const actions = (
          <>
            {isAllowed('agents:CreateAgentGeneration') && (
              <Button
                component={Link}
                to={`/p/${projectId}/playground?q=${agentId}`}
                variant="default"
                leftSection={<IconPlayerPlay size={16} />}
              >
                {strings.agents.try}
              </Button>
            )}
            {isAllowed('agents:UpdateAgent') && (
              <Button leftSection={<IconEdit size={16} />} onClick={editing.open}>
                {strings.agents.edit}
              </Button>
            )}
            {isAllowed('agents:DeleteAgent') && (
              <Menu position="bottom-end">
                <Menu.Target>
                  <Button variant="default" px="xs" aria-label={strings.more}>
                    <IconDots size={18} />
                  </Button>
                </Menu.Target>
                <Menu.Dropdown>
                  <Menu.Item onClick={deleting.open}>{strings.remove}</Menu.Item>
                </Menu.Dropdown>
              </Menu>
            )}
          </>
        )
        if (isEditing)
          return (
            <Page title={name}>
              <AgentForm agent={record} etag={etag} onDone={editing.close} onCancel={editing.close} />
            </Page>
          )
        return (
          <Page title={name} intro={record.description && visible(record.description)} actions={actions}>
            <Tabs
              value={tab}
              onChange={next => void navigate({ to: '.', search: { tab: next ?? undefined }, replace: true })}
              keepMounted={false}
            >
              <Tabs.List mb="lg">
                <Tabs.Tab value="record">{strings.agents.record}</Tabs.Tab>
                <Tabs.Tab value="versions">{strings.agents.versions}</Tabs.Tab>
                <Tabs.Tab value="json">{strings.agents.json}</Tabs.Tab>
              </Tabs.List>
              <Tabs.Panel value="record">
                <Record agent={record} />
              </Tabs.Panel>
              <Tabs.Panel value="versions">
                <AgentVersions agent={record} />
              </Tabs.Panel>
              <Tabs.Panel value="json">
                <Value value={record} label={strings.agents.json} />
              </Tabs.Panel>
            </Tabs>
            <DeleteModal agent={record} isOpen={isDeleting} onClose={deleting.close} />
          </Page>
        )
      }}
    </Loaded>
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
  const { tool_bindings: tools, guardrail_ids: guardrails } = agent
  return (
    <Stack gap="lg">
      <Card withBorder padding="lg" radius="lg">
        <SimpleGrid cols={{ base: 2, sm: 4 }} spacing="lg">
          <Field label={strings.agents.model}>
            {agent.model ? <span className="mono">{visible(agent.model)}</span> : strings.agents.defaultModel}
          </Field>
          <Field label={strings.agents.version}>{agent.version}</Field>
          <Field label={strings.agents.tools}>{tools?.length ?? 0}</Field>
          <Field label={strings.agents.guardrails}>{guardrails?.length ?? 0}</Field>
          <Field label={strings.agents.temperature}>{agent.temperature ?? strings.agents.defaultValue}</Field>
          <Field label={strings.agents.maxSteps}>{agent.max_steps ?? strings.agents.defaultValue}</Field>
          <Field label={strings.agents.created}>
            <When at={agent.created_at} />
          </Field>
          <Field label={strings.agents.updated}>
            <When at={agent.updated_at} />
          </Field>
        </SimpleGrid>
        <Text size="sm" c="dimmed" mt="lg">
          {strings.agents.id} <span className="mono">{agent.id}</span>
        </Text>
      </Card>
      <Card withBorder padding="lg" radius="lg">
        <Text fw={600} component="h2" size="md" mb="sm">
          {strings.agents.instructions}
        </Text>
        {agent.instructions ? (
          <Text component="div" className="wrap">
            {visible(agent.instructions)}
          </Text>
        ) : (
          <Text c="dimmed">{strings.agents.noInstructions}</Text>
        )}
      </Card>
      {tools && tools.length > 0 && (
        <Card withBorder padding="lg" radius="lg">
          <Text fw={600} component="h2" size="md" mb="sm">
            {strings.agents.tools}
          </Text>
          <Value value={tools} label={strings.agents.tools} />
        </Card>
      )}
    </Stack>
  )
}

/** Returns what part of the callers a version serves. */
function served({ version: current, active_release: release }: Agent, version: number): string | null {
  if (!release) return version === current ? strings.agents.live : null
  if (version === release.canary_version) return strings.release.canary
  return version === release.stable_version ? strings.release.stable : null
}

function AgentVersions({ agent }: { agent: Agent }) {
  const isAllowed = usePermissions(agent.project_id)
  const navigate = useNavigate()
  const mayTry = isAllowed('agents:CreateAgent') && isAllowed('agents:CreateAgentGeneration')
  const trySide = ({ version, config }: AgentVersion) => (
    <ActionButton
      label={strings.agents.trySide}
      question={strings.agents.trySideText(version)}
      stale={[['agents']]}
      run={async () => {
        const name = strings.agents.copyOf(agent.name ?? strings.agents.unnamed, version)
        const copy = await createAgent(api, { ...config, name, project_id: agent.project_id })
        await navigate({ to: `/p/${agent.project_id}/playground`, search: { q: agent.id, beside: copy.id } })
      }}
    />
  )
  return (
    <Versions<AgentVersion>
      queryKey={['agent', agent.id]}
      current={agent.version}
      list={async signal => (await listAgentVersions(api, { agent_id: agent.id, limit: 100 }, { signal }).page()).data}
      compare={async (from, to, signal) => compareAgentVersions(api, { agent_id: agent.id, from, to }, { signal })}
      restore={
        isAllowed('agents:RestoreAgentVersion')
          ? async version => restoreAgentVersion(api, { agent_id: agent.id, version: String(version) })
          : undefined
      }
      stale={[['agent', agent.id]]}
      actions={{ list: 'agents:ListAgentVersions', get: 'agents:GetAgentVersion' }}
      stateOf={version => served(agent, version)}
      extra={row => row.version !== agent.version && mayTry && trySide(row)}
      above={rows => <Release agent={agent} versions={rows} />}
    />
  )
}

function DeleteModal({ agent, isOpen, onClose }: { agent: Agent; isOpen: boolean; onClose: () => void }) {
  const cache = useQueryClient()
  const navigate = useNavigate()
  const remove = useMutation({
    mutationFn: async () => deleteAgent(api, { agent_id: agent.id }),
    onSuccess: async () => {
      await navigate({ to: `/p/${agent.project_id}/agents` })
      cache.removeQueries({ queryKey: ['agent', agent.id] })
      void cache.invalidateQueries({ queryKey: ['agents'] })
    },
  })
  return (
    <Modal opened={isOpen} onClose={onClose} title={strings.agents.delete(visible(agent.name ?? agent.id))}>
      <Stack gap="md">
        <Text>{strings.agents.deleteText}</Text>
        {remove.error && <FailureAlert error={remove.error} />}
        <Group>
          <Button color="red" loading={remove.isPending} onClick={() => remove.mutate()}>
            {strings.remove}
          </Button>
          <Button variant="default" onClick={onClose}>
            {strings.cancel}
          </Button>
        </Group>
      </Stack>
    </Modal>
  )
}
