import { Anchor, Badge, Group, SegmentedControl, Stack, Table, Text } from '@mantine/core'
import type { Feedback, FeedbackAggregate } from '@muster/client'
import { getFeedbackAggregate, listFeedback, listSessions } from '@muster/client/operations'
import { IconThumbUp } from '@tabler/icons-react'
import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { Suspense } from 'react'
import { api } from '#api.ts'
import { useAgents } from '#choices.ts'
import { daysOf } from '#components/days.ts'
import { EntityLink } from '#components/entity-link.tsx'
import { Figures } from '#components/figures.tsx'
import { type Filters, useFilters } from '#components/filters.ts'
import { ChoiceField, type Column, ListView, RecordLink, TableHead, useList } from '#components/list.tsx'
import { onDemand } from '#components/on-demand.tsx'
import { Page } from '#components/page.tsx'
import { Section } from '#components/record.tsx'
import { Loaded, Loading, Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const Chart = onDemand(async () => (await import('#components/chart.tsx')).default)

const texts = strings.ratings

const PERIODS = [7, 30, 90]
const RATINGS = ['1', '-1'] as const
/** The period of the list of sessions that is not shorter than a number of days. */
const SESSION_TIMES: Record<number, string | undefined> = { 7: 'week', 30: 'month' }

type Bucket = FeedbackAggregate['data'][number]
type Totals = { data: Bucket[] }

const countText = (value: number): string => value.toLocaleString()
/** The axis of a chart has no parts of a rating. */
const tickText = (value: number): string => (Number.isInteger(value) ? countText(value) : '')

const periodOf = ({ days }: Filters): number => PERIODS.find(each => String(each) === days) ?? 30

/** Returns the start of a period; equal within a day, so that its queries are. */
const startOf = (count: number): string => new Date(daysOf(count)[0] * 1000).toISOString()

function useTotals(groupBy: 'agent_version' | 'agent' | 'day' | 'label') {
  const projectId = useProjectId()
  const { filters } = useFilters()
  const from = startOf(periodOf(filters))
  return useQuery<Totals>({
    queryKey: ['feedback', projectId, 'totals', groupBy, filters.agent, from],
    queryFn: async ({ signal }) =>
      getFeedbackAggregate(
        api,
        { project_id: projectId, agent_id: filters.agent, group_by: groupBy, from },
        { signal },
      ),
    placeholderData: keepPreviousData,
  })
}

/** Totals of the feedback of a project, and the feedback itself. */
export function FeedbackTotals() {
  const projectId = useProjectId()
  const { filters, setFilters } = useFilters()
  const { choices: agents = [] } = useAgents(projectId)
  const count = periodOf(filters)
  return (
    <Page title={strings.nav.feedback} intro={texts.intro}>
      <Group gap="sm">
        <SegmentedControl
          aria-label={texts.period}
          value={String(count)}
          onChange={days => setFilters({ days: days === '30' ? undefined : days })}
          data={PERIODS.map(days => ({ value: String(days), label: texts.periods[days] }))}
        />
        {agents.length > 0 && <ChoiceField name="agent" label={texts.agent} choices={agents} />}
      </Group>
      <ByDay count={count} />
      <Breakdown />
      <Newest />
    </Page>
  )
}

const sum = (groups: Bucket[], of: (group: Bucket) => number): number =>
  groups.reduce((total, group) => total + of(group), 0)

/** Links to the sessions with a rating, of the agent and period of the view. */
function SessionsLink({ rating, children }: { rating: (typeof RATINGS)[number]; children: string }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { filters } = useFilters()
  if (!isAllowed(listSessions)) return null
  const search = { rating, agent: filters.agent, time: SESSION_TIMES[periodOf(filters)] }
  return (
    <Anchor
      component={Link}
      to={`/p/${projectId}/sessions`}
      search={Object.fromEntries(Object.entries(search).filter(([, value]) => value)) as never}
      size="sm"
      underline="always"
    >
      {children}
    </Anchor>
  )
}

/** The totals of the period as figures and as a chart. */
function ByDay({ count }: { count: number }) {
  const totals = useTotals('day')
  return (
    <Loaded query={totals} operation={getFeedbackAggregate}>
      {({ data }) => {
        if (data.length === 0)
          return (
            <Notice icon={<IconThumbUp />} title={texts.empty} color="indigo">
              {texts.emptyText}
            </Notice>
          )
        const good = sum(data, ({ up }) => up)
        const bad = sum(data, ({ down }) => down)
        const days = daysOf(count)
        const byDay = new Map(data.map(group => [group.key, group]))
        const valuesOf = (of: (group: Bucket) => number) =>
          days.map(day => {
            const group = byDay.get(new Date(day * 1000).toISOString().slice(0, 10))
            return group ? of(group) : 0
          })
        return (
          <Stack gap="lg">
            <Figures
              figures={[
                { label: texts.count, value: countText(sum(data, group => group.count)) },
                {
                  label: texts.good,
                  value: countText(good),
                  note: <SessionsLink rating="1">{texts.goodSessions}</SessionsLink>,
                },
                {
                  label: texts.bad,
                  value: countText(bad),
                  note: <SessionsLink rating="-1">{texts.badSessions}</SessionsLink>,
                },
                { label: texts.share, value: shareText(good, bad) },
              ]}
            />
            <Section title={texts.byDay}>
              <Suspense fallback={<Loading />}>
                <Chart
                  label={texts.byDay}
                  days={days}
                  series={[
                    { name: texts.good, values: valuesOf(({ up }) => up) },
                    { name: texts.unrated, values: valuesOf(({ count: all, up, down }) => all - up - down) },
                    { name: texts.bad, values: valuesOf(({ down }) => down) },
                  ]}
                  format={tickText}
                />
              </Suspense>
            </Section>
          </Stack>
        )
      }}
    </Loaded>
  )
}

const shareText = (good: number, bad: number): string =>
  good + bad === 0
    ? strings.none
    : (good / (good + bad)).toLocaleString(undefined, { style: 'percent', maximumFractionDigits: 0 })

/** The totals by agent, or by version of the chosen agent, and by label. */
function Breakdown() {
  const projectId = useProjectId()
  const { filters } = useFilters()
  const { nameOf } = useAgents(projectId)
  const isOfAgent = Boolean(filters.agent)
  const main = useTotals(isOfAgent ? 'agent_version' : 'agent')
  const labels = useTotals('label')
  const title = isOfAgent ? texts.byVersion : texts.byAgent
  const nameCell = ({ key }: Bucket) => {
    if (key === null) return texts.noVersion
    if (isOfAgent) return texts.version(key)
    return <EntityLink kind="agent" id={key} projectId={projectId} name={nameOf(key)} />
  }
  return (
    <>
      {main.data && main.data.data.length > 0 && (
        <GroupTable
          title={title}
          first={isOfAgent ? strings.version : texts.agent}
          groups={main.data.data}
          cell={nameCell}
        />
      )}
      {labels.data && labels.data.data.length > 0 && (
        <GroupTable
          title={texts.byLabel}
          first={texts.label}
          groups={labels.data.data}
          cell={({ key }) => visible(key ?? strings.none)}
        />
      )}
    </>
  )
}

function GroupTable({
  title,
  first,
  groups,
  cell,
}: {
  title: string
  first: string
  groups: Bucket[]
  cell: (group: Bucket) => React.ReactNode
}) {
  return (
    <Section title={title}>
      <Table verticalSpacing="sm" horizontalSpacing="md" className="rows" aria-label={title}>
        <TableHead titles={[first, texts.count, texts.good, texts.bad, texts.share, texts.mean]} />
        <Table.Tbody>
          {groups.map(group => (
            <Table.Tr key={group.key}>
              <Table.Td className="wide">
                <Text fw={600} component="div">
                  {cell(group)}
                </Text>
              </Table.Td>
              <Table.Td data-title={texts.count}>{countText(group.count)}</Table.Td>
              <Table.Td data-title={texts.good}>{countText(group.up)}</Table.Td>
              <Table.Td data-title={texts.bad}>{countText(group.down)}</Table.Td>
              <Table.Td data-title={texts.share}>{shareText(group.up, group.down)}</Table.Td>
              <Table.Td data-title={texts.mean}>
                {group.mean_score?.toLocaleString(undefined, { maximumFractionDigits: 2 }) ?? strings.none}
              </Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Section>
  )
}

const feedbackColumns = (projectId: string, nameOf: (id: string) => string): Column<Feedback>[] => [
  {
    title: texts.reply,
    isWide: true,
    cell: ({ session_id, generation_id, comment, labels }) => (
      <Stack gap={4}>
        {session_id ? (
          <RecordLink to={`/p/${projectId}/sessions/${session_id}`}>{texts.inSession}</RecordLink>
        ) : (
          generation_id && <RecordLink to={`/p/${projectId}/traces/${generation_id}`}>{texts.ofTurn}</RecordLink>
        )}
        {comment && <Text size="sm">{visible(comment)}</Text>}
        {labels.length > 0 && (
          <Group gap={6}>
            {labels.map(label => (
              <Badge key={label} variant="default" tt="none">
                {visible(label)}
              </Badge>
            ))}
          </Group>
        )}
      </Stack>
    ),
  },
  {
    title: texts.rating,
    cell: ({ rating, score }) => {
      if (rating === null) return score === null ? strings.none : strings.search.score(score)
      return <Badge variant="default">{rating > 0 ? texts.good : texts.bad}</Badge>
    },
  },
  {
    title: texts.agent,
    cell: ({ agent_id }) => <EntityLink kind="agent" id={agent_id} projectId={projectId} name={nameOf(agent_id)} />,
  },
  { title: texts.author, cell: ({ author }) => strings.feedback.authors[author.type] },
  { title: strings.created, cell: ({ created_at }) => <When at={created_at} /> },
]

/** The feedback of the period, the newest first. */
function Newest() {
  const projectId = useProjectId()
  const { nameOf } = useAgents(projectId)
  const list = useList<Feedback>(['feedback', projectId], async (filters, bounds, signal) => {
    const args = {
      project_id: projectId,
      agent_id: filters.agent,
      rating: RATINGS.find(each => each === filters.rating),
      label: filters.label,
      has_comment: filters.comment === 'true' || undefined,
      from: startOf(periodOf(filters)),
      ...bounds,
    }
    return listFeedback(api, args, { signal }).page()
  })
  return (
    <Section title={texts.newest}>
      <ListView
        label={texts.newest}
        list={list}
        operation={listFeedback}
        columns={feedbackColumns(projectId, nameOf)}
        choices={['days']}
        fields={
          <>
            <ChoiceField
              name="rating"
              label={texts.rating}
              choices={[
                { value: '1', label: texts.good },
                { value: '-1', label: texts.bad },
              ]}
            />
            <ChoiceField
              name="comment"
              label={texts.withComment}
              choices={[{ value: 'true', label: texts.commented }]}
            />
          </>
        }
        empty={<Text c="dimmed">{texts.noneMatches}</Text>}
      />
    </Section>
  )
}
