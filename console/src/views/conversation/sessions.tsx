import { Badge, Button, Group, Modal, Select, Stack, Text, TextInput } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import type { Session, SessionEntry } from '@muster/client'
import {
  createSession,
  getActor,
  listAgents,
  listFeedback,
  listSessionAssignees,
  listSessions,
} from '@muster/client/operations'
import { IconMessages, IconPlus } from '@tabler/icons-react'
import { useMutation, useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { api, every } from '#api.ts'
import { useAgents } from '#choices.ts'
import { AgentLink, EndUserLink } from '#components/end-user-link.tsx'
import type { Filters } from '#components/filters.ts'
import { ChoiceField, type Column, ListView, RecordLink, SearchField, useList } from '#components/list.tsx'
import { authorOf } from '#components/message.tsx'
import { Page } from '#components/page.tsx'
import { usePersonName } from '#components/person.ts'
import { SubmitRow } from '#components/schema-form.tsx'
import { Notice, Refused } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { useMe, usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.sessions
const filterTexts = strings.sessionFilters

const POLL_MS = 10_000
const STATUSES = ['open', 'closed', 'expired'] as const
const RATINGS = ['1', '-1'] as const

/** The summary of a session in the list. */
export function SessionBadges({ session }: { session: Session }) {
  const { control, attention, status, generating_at } = session
  return (
    <Group gap={6}>
      {attention && (
        <Badge color="red.9" variant="filled">
          {texts.attention}
        </Badge>
      )}
      {control === 'operator' && <InCharge session={session} />}
      {generating_at && <Badge variant="default">{texts.replying}</Badge>}
      <Badge variant="default">{texts.status[status]}</Badge>
    </Group>
  )
}

/** Who answers in a session that was taken over, and since when. */
function InCharge({ session: { project_id, assigned_to, assignee_name, assigned_at } }: { session: Session }) {
  const personName = usePersonName(project_id)
  return (
    <>
      <Badge variant="default" tt="none" maw="100%">
        {assigned_to === null ? texts.operator : texts.answers(personName(assigned_to, assignee_name))}
      </Badge>
      {assigned_at && (
        <Text size="xs" c="dimmed" component="span">
          <When at={assigned_at} />
        </Text>
      )}
    </>
  )
}

const sessionColumns = (projectId: string): Column<SessionEntry>[] => [
  {
    title: strings.name,
    isWide: true,
    cell: ({ id, name, last_message }) => (
      <>
        <RecordLink to={`/p/${projectId}/sessions/${id}`}>{visible(name ?? texts.unnamed)}</RecordLink>
        {last_message?.preview ? (
          <Text size="sm" c="dimmed" lineClamp={2} style={{ overflowWrap: 'anywhere' }}>
            {authorOf(last_message)}: {visible(last_message.preview)}
          </Text>
        ) : (
          <Text size="xs" c="dimmed" className="mono">
            {id}
          </Text>
        )}
      </>
    ),
  },
  { title: filterTexts.endUser, cell: session => <EndUserLink entry={session} /> },
  { title: texts.agent, cell: session => <AgentLink entry={session} /> },
  { title: strings.state, cell: session => <SessionBadges session={session} /> },
  {
    title: texts.activity,
    cell: ({ last_activity_at, created_at }) => <When at={last_activity_at ?? created_at} />,
  },
]

const HOURS = { day: 24, week: 7 * 24, month: 30 * 24 }
type Period = keyof typeof HOURS

/** Returns the filters of an address as arguments of the list. */
function filterArgs({ q, status, agent, actor, attention, rating, assignee, time }: Filters) {
  const hours: number | undefined = HOURS[time as Period]
  return {
    name: q,
    status: STATUSES.filter(each => each === status),
    agent_id: agent,
    actor: actor?.trim() || undefined,
    attention: attention === 'true' || undefined,
    rating: RATINGS.find(each => each === rating),
    assigned_to: assignee,
    from: hours === undefined ? undefined : new Date(Date.now() - hours * 3_600_000).toISOString(),
  }
}

/** The choices of the filter by who is in charge: the reader, no user, and each assigned user. */
function useAssignees(projectId: string) {
  const { data: me } = useMe()
  const personName = usePersonName(projectId)
  const { data = [] } = useQuery({
    queryKey: ['sessions', projectId, 'assignees'],
    queryFn: async ({ signal }) => (await listSessionAssignees(api, { project_id: projectId }, { signal })).data,
    refetchInterval: every(POLL_MS),
  })
  if (!me) return []
  return [
    { value: me.id, label: filterTexts.assignedToMe },
    { value: 'none', label: filterTexts.unassigned },
    ...data
      .filter(({ user_id }) => user_id !== me.id)
      .map(({ user_id, name, session_count }) => ({
        value: user_id,
        label: filterTexts.assignedTo(personName(user_id, name), session_count),
      })),
  ]
}

function SessionFilters({ projectId }: { projectId: string }) {
  const isAllowed = usePermissions(projectId)
  const assignees = useAssignees(projectId)
  const { choices: agents = [] } = useAgents(projectId)
  return (
    <>
      <SearchField />
      {isAllowed(getActor) && <SearchField name="actor" label={filterTexts.endUser} />}
      <ChoiceField
        name="status"
        label={strings.status}
        choices={STATUSES.map(value => ({ value, label: texts.status[value] }))}
      />
      <ChoiceField
        name="attention"
        label={filterTexts.attention}
        choices={[{ value: 'true', label: filterTexts.needsPerson }]}
      />
      {agents.length > 0 && <ChoiceField name="agent" label={texts.agent} choices={agents} />}
      {isAllowed(listFeedback) && (
        <ChoiceField
          name="rating"
          label={filterTexts.rating}
          choices={RATINGS.map(value => ({ value, label: filterTexts.ratings[value] }))}
        />
      )}
      {assignees.length > 0 && <ChoiceField name="assignee" label={filterTexts.assignee} choices={assignees} />}
      <ChoiceField
        name="time"
        label={filterTexts.time}
        choices={(Object.keys(HOURS) as Period[]).map(value => ({ value, label: filterTexts.times[value] }))}
      />
    </>
  )
}

/** Sessions of a project. */
export function Sessions() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  const [isCreating, creating] = useDisclosure()
  const list = useList<SessionEntry>(
    ['sessions', projectId],
    async (filters, bounds, signal) =>
      listSessions(api, { project_id: projectId, ...filterArgs(filters), ...bounds }, { signal }).page(),
    { pollMs: POLL_MS },
  )
  const columns = sessionColumns(projectId)
  const create = isAllowed(createSession) && (
    <Button leftSection={<IconPlus size={16} />} onClick={creating.open}>
      {texts.create}
    </Button>
  )
  return (
    <Page title={strings.nav.sessions} intro={texts.intro} actions={create}>
      <ListView
        label={strings.nav.sessions}
        list={list}
        operation={listSessions}
        columns={columns}
        fields={<SessionFilters projectId={projectId} />}
        view="sessions"
        empty={
          <Notice icon={<IconMessages />} title={texts.empty} action={create} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
      <Modal opened={isCreating} onClose={creating.close} title={texts.create}>
        <SessionForm onDone={id => void navigate({ to: `/p/${projectId}/sessions/${id}` })} />
      </Modal>
    </Page>
  )
}

function SessionForm({ onDone }: { onDone: (id: string) => void }) {
  const projectId = useProjectId()
  const [agentId, setAgentId] = useState<string | null>(null)
  const [name, setName] = useState('')
  const { rows: agents, choices, query } = useAgents(projectId)
  const isAllowed = usePermissions(projectId)
  const chosen = agentId ?? agents?.[0]?.id ?? null
  const create = useMutation({
    mutationFn: async (agent_id: string) =>
      createSession(api, {
        project_id: projectId,
        agent_id,
        auto_generate: true,
        ...(name.trim() ? { name: name.trim() } : {}),
      }),
    onSuccess: ({ id }) => onDone(id),
  })
  if (isAllowed(listAgents) === false) return <Refused operation={listAgents} />
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        if (chosen) create.mutate(chosen)
      }}
    >
      <Stack gap="md">
        <Select
          label={texts.agent}
          data={choices}
          value={chosen}
          onChange={setAgentId}
          allowDeselect={false}
          searchable
          required
        />
        <TextInput
          label={strings.name}
          value={name}
          onChange={event => setName(event.currentTarget.value)}
          data-autofocus
        />
        <SubmitRow
          label={strings.create}
          isPending={create.isPending}
          error={create.error ?? query.error}
          disabled={!chosen}
        />
      </Stack>
    </form>
  )
}
