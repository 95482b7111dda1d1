import { Button, Select, Text } from '@mantine/core'
import { useDebouncedValue, useDisclosure } from '@mantine/hooks'
import type { GenerationListed } from '@muster/client'
import {
  createAgentGeneration,
  getActor,
  getGeneration,
  getTrace,
  listActors,
  listGenerations,
} from '@muster/client/operations'
import { IconPlayerPlay, IconSearch, IconTimeline } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { api, POLL_MS } from '#api.ts'
import { useAgents } from '#choices.ts'
import { EndUserLink } from '#components/end-user-link.tsx'
import { type Filters, useFilters } from '#components/filters.ts'
import {
  ChoiceField,
  type Column,
  EntryField,
  ListView,
  RecordLink,
  TimeField,
  timeOf,
  useList,
} from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Notice } from '#components/states.tsx'
import { Status, statusText } from '#components/status.tsx'
import { costText, durationText, visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.traces

/** End users that the filter offers, and the pause after which it searches. */
const FOUND = 20
const TYPING_MS = 200

const STATUSES = ['pending', 'in_progress', 'requires_action', 'completed', 'failed'] as const
const SOURCES = ['eval', 'decider', 'memory_rule', 'ingestion']

const between = (from: string | null, to: string | null): number | null =>
  from && to ? Math.max(0, Date.parse(to) - Date.parse(from)) : null

const generationColumns = (projectId: string): Column<GenerationListed>[] => [
  {
    title: texts.turn,
    isWide: true,
    cell: ({ id, agent_id, agent_name, source }) => (
      <>
        <RecordLink to={`/p/${projectId}/traces/${id}`}>{visible(agent_name ?? agent_id)}</RecordLink>
        <Text size="xs" c="dimmed">
          <span className="mono">{id}</span>
          {source && ` · ${visible(texts.sources[source] ?? source)}`}
        </Text>
      </>
    ),
  },
  { title: strings.endUsers.one, cell: turn => <EndUserLink entry={turn} /> },
  { title: strings.status, cell: ({ status }) => <Status status={status} /> },
  {
    title: strings.runs.tokens,
    cell: ({ usage }) => (usage ? (usage.input_tokens + usage.output_tokens).toLocaleString() : strings.none),
  },
  { title: strings.runs.cost, cell: ({ usage }) => (usage ? costText(usage.cost_usd) : strings.none) },
  {
    title: strings.runs.time,
    cell: ({ started_at, completed_at }) => {
      const ms = between(started_at, completed_at)
      return ms === null ? strings.none : durationText(ms)
    },
  },
  { title: strings.started, cell: ({ created_at }) => <When at={created_at} /> },
]

const HOURS = { hour: 1, day: 24, week: 7 * 24, month: 30 * 24 }
type Period = keyof typeof HOURS

/** Filters that are shown on request, unless the address has one of them. */
const RARE = ['cost', 'latency', 'from', 'to', 'source', 'session']

const amountOf = (value: string | undefined): number | undefined =>
  value && Number(value) >= 0 ? Number(value) : undefined

/** Returns the filters of an address as arguments of the list. */
function filterArgs({ status, error, agent, actor, text, time, from, to, cost, latency, source, session }: Filters) {
  const hours: number | undefined = HOURS[time as Period]
  const seconds = amountOf(latency)
  return {
    status: STATUSES.filter(each => each === status),
    error_code: error,
    agent_id: agent,
    actor_id: actor?.trim(),
    text,
    from: hours === undefined ? timeOf(from)?.toISOString() : new Date(Date.now() - hours * 3_600_000).toISOString(),
    to: timeOf(to)?.toISOString(),
    min_cost_usd: amountOf(cost),
    min_latency_ms: seconds === undefined ? undefined : Math.round(seconds * 1000),
    source,
    session_id: session?.trim(),
  }
}

/** A filter by an end user, found by its name, external ID or ID. */
function EndUserField({ projectId }: { projectId: string }) {
  const { filters, setFilters } = useFilters()
  const isAllowed = usePermissions(projectId)
  const [search, setSearch] = useState('')
  const [typed] = useDebouncedValue(search, TYPING_MS)
  const chosen = useQuery({
    queryKey: ['actor', filters.actor, 'record'],
    queryFn: async ({ signal }) => getActor(api, { actor_id: filters.actor as string }, { signal }),
    enabled: Boolean(filters.actor) && isAllowed(getActor) === true,
  })
  const found = useQuery({
    queryKey: ['actors', projectId, 'found', typed],
    queryFn: async ({ signal }) =>
      (
        await listActors(
          api,
          { project_id: projectId, limit: FOUND, search: typed.trim() || undefined },
          { signal },
        ).page()
      ).data,
    enabled: isAllowed(listActors) === true,
    placeholderData: previous => previous,
  })
  if (!isAllowed(listActors)) return <EntryField name="actor" label={texts.endUserId} width={280} />
  const known = [...(chosen.data ? [chosen.data] : []), ...(found.data ?? [])].map(({ id, name, external_id }) => ({
    value: id,
    label: visible(external_id === null ? name : `${name} (${external_id})`),
  }))
  const unknown = filters.actor && !known.some(({ value }) => value === filters.actor)
  const options = [
    ...(unknown ? [{ value: filters.actor as string, label: visible(filters.actor as string) }] : []),
    ...known,
  ]
  return (
    <Select
      aria-label={texts.endUser}
      placeholder={texts.endUser}
      data={options.filter(({ value }, at) => options.findIndex(each => each.value === value) === at)}
      value={filters.actor ?? null}
      onChange={next => setFilters({ actor: next ?? undefined })}
      searchable
      clearable
      clearButtonProps={{ 'aria-label': strings.form.clear(texts.endUser) }}
      onSearchChange={setSearch}
      filter={({ options }) => options}
      nothingFoundMessage={strings.nothingFound}
      w={{ base: '100%', xs: 220 }}
    />
  )
}

function TraceFilters({ projectId }: { projectId: string }) {
  const { filters } = useFilters()
  const isAllowed = usePermissions(projectId)
  const { choices: agents = [] } = useAgents(projectId)
  const [isOpen, more] = useDisclosure()
  const isNeeded = RARE.some(name => filters[name])
  return (
    <>
      <ChoiceField
        name="status"
        label={strings.status}
        choices={STATUSES.map(value => ({ value, label: statusText(value) }))}
      />
      <EntryField name="error" label={texts.errorCode} width={220} />
      {agents.length > 0 && <ChoiceField name="agent" label={strings.playground.agent} choices={agents} />}
      <EndUserField projectId={projectId} />
      {isAllowed(getGeneration) && isAllowed(getTrace) && (
        <EntryField
          name="text"
          label={texts.text}
          width={280}
          maxLength={2048}
          leftSection={<IconSearch size={16} />}
        />
      )}
      <ChoiceField
        name="time"
        label={texts.time}
        choices={(Object.keys(HOURS) as Period[]).map(value => ({ value, label: texts.times[value] }))}
      />
      {!isNeeded && (
        <Button variant="default" aria-expanded={isOpen} onClick={more.toggle}>
          {texts.moreFilters}
        </Button>
      )}
      {(isOpen || isNeeded) && (
        <>
          <EntryField name="cost" label={texts.cost} type="number" min={0} step="any" />
          <EntryField name="latency" label={texts.latency} type="number" min={0} step="any" width={220} />
          <TimeField name="from" label={texts.from} />
          <TimeField name="to" label={texts.to} />
          <ChoiceField
            name="source"
            label={texts.source}
            choices={SOURCES.map(value => ({ value, label: texts.sources[value] }))}
          />
          <EntryField name="session" label={texts.session} width={280} />
        </>
      )}
    </>
  )
}

/** Turns of a project. */
export function Traces() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { filters } = useFilters()
  const list = useList<GenerationListed>(
    ['generations', projectId],
    async (wanted, bounds, signal) =>
      listGenerations(api, { project_id: projectId, ...filterArgs(wanted), ...bounds }, { signal }).page(),
    // A search for a text reads the texts of all turns that it may find.
    filters.text ? { refetchOnWindowFocus: false } : { pollMs: POLL_MS },
  )
  const columns = generationColumns(projectId)
  return (
    <Page title={strings.nav.traces} intro={texts.intro}>
      <ListView
        label={strings.nav.traces}
        list={list}
        operation={listGenerations}
        columns={columns}
        fields={<TraceFilters projectId={projectId} />}
        view="traces"
        empty={
          <Notice
            icon={<IconTimeline />}
            title={texts.empty}
            color="indigo"
            action={
              isAllowed(createAgentGeneration) && (
                <Button component={Link} to={`/p/${projectId}/playground`} leftSection={<IconPlayerPlay size={16} />}>
                  {strings.agents.try}
                </Button>
              )
            }
          >
            {texts.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}

/** The turns of a chain. */
export function TurnList({ chainId }: { chainId: string }) {
  const projectId = useProjectId()
  const list = useList<GenerationListed>(
    ['generations', projectId, 'of-chain', chainId],
    async (_, bounds, signal) =>
      listGenerations(api, { project_id: projectId, chain_id: chainId, ...bounds }, { signal }).page(),
    { pollMs: POLL_MS },
  )
  return (
    <ListView
      label={strings.chains.allTurns}
      list={list}
      operation={listGenerations}
      columns={generationColumns(projectId)}
      empty={<Text c="dimmed">{strings.traces.empty}</Text>}
    />
  )
}
