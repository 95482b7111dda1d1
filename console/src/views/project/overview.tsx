import { Anchor, Badge, Button, Card, Group, Stack, Table, Text, Title } from '@mantine/core'
import type { GenerationListed, SystemStatus } from '@muster/client'
import {
  aggregateUsage,
  createAgentGeneration,
  getQuotaUsage,
  getSystemStatus,
  listGenerations,
  listQuotas,
  pauseProject,
} from '@muster/client/operations'
import { IconPlayerPlay } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { Suspense } from 'react'
import { api, every } from '#api.ts'
import { FailingChecks } from '#components/failing-checks.tsx'
import { type Figure, Figures } from '#components/figures.tsx'
import { Meter } from '#components/meter.tsx'
import { onDemand } from '#components/on-demand.tsx'
import { Page } from '#components/page.tsx'
import { PauseButton } from '#components/pause.tsx'
import { Loaded, Loading, Notice } from '#components/states.tsx'
import { StatusBadge } from '#components/status.tsx'
import { costText, elapsedText, visible, When } from '#components/text.tsx'
import { useApprovals, useAttention, useExceptions } from '#inbox/waiting.ts'
import { usePermissions, useProjectId, useProjects } from '#projects.ts'
import * as strings from '#strings.ts'

const TurnCharts = onDemand(async () => (await import('#components/turn-charts.tsx')).default)

const texts = strings.overview

const POLL_MS = 10_000
/** Turns of which the failures are counted, and those that are shown. */
const SAMPLE = 100
const SHOWN = 8

/** Reads the figures of a project. `status` describes the deployment, for those who may see it. */
function useFigures(projectId: string, status: SystemStatus | undefined): Figure[] {
  const isAllowed = usePermissions(projectId)
  const refetchInterval = every(POLL_MS)
  const usage = useQuery({
    queryKey: ['overview', 'usage', projectId],
    queryFn: async ({ signal }) => {
      const from = new Date()
      from.setHours(0, 0, 0, 0)
      return aggregateUsage(api, { project_id: projectId, from: from.toISOString() }, { signal })
    },
    enabled: isAllowed(aggregateUsage) === true,
    refetchInterval,
  })
  // One query with the number in the navigation.
  const approvals = useApprovals(projectId, 1, 1).data?.total
  const exceptions = useExceptions(projectId, 1).data?.total
  const attention = useAttention(projectId, 1).data?.total
  const perMinute = useQuery({
    queryKey: ['overview', 'rate', projectId],
    queryFn: async ({ signal }) => {
      const now = Date.now()
      const range = { from: new Date(now - 60_000).toISOString(), to: new Date(now).toISOString() }
      const { total } = await listGenerations(api, { project_id: projectId, ...range, limit: 1 }, { signal }).page()
      return { total, range }
    },
    enabled: isAllowed(listGenerations) === true,
    refetchInterval,
  })
  const quota = useQuery({
    queryKey: ['overview', 'quota', projectId],
    queryFn: async ({ signal }) => {
      const { data } = await listQuotas(
        api,
        { project_id: projectId, scope: ['project'], metric: ['cost_usd'], limit: 100 },
        { signal },
      ).page()
      const daily = data.find(({ window }) => window === 'rolling_24h') ?? data[0]
      return daily ? { ...daily, usage: await getQuotaUsage(api, { quota_id: daily.id }, { signal }) } : null
    },
    enabled: isAllowed(listQuotas) === true,
    refetchInterval,
  })
  const oldest = status && Math.max(0, ...status.queues.map(({ oldest_seconds }) => oldest_seconds))
  const totals = usage.data?.totals
  /** A number with a link to the records that it counts. */
  const counted = (
    label: string,
    count: number | undefined,
    path: string,
    search?: Record<string, string>,
  ): Figure => ({
    label,
    value: count?.toLocaleString(),
    action: Boolean(count) && <OpenButton {...{ label, search }} to={`/p/${projectId}/${path}`} />,
  })
  const dead = status?.queues.filter(queue => queue.dead > 0) ?? []
  const limit = quota.data
  return [
    {
      label: texts.cost,
      value: totals && costText(totals.event_count === 0 ? 0 : totals.cost_usd),
      note: (
        <>
          {totals && totals.unpriced_tokens > 0 && (
            <Text size="sm">
              {strings.charts.unpriced(
                totals.unpriced_tokens.toLocaleString(),
                strings.usage.share(totals.unpriced_share),
              )}
            </Text>
          )}
          {limit && limit.usage.observed_value !== null && (
            <>
              {texts.quota(
                costText(limit.usage.observed_value),
                costText(limit.limit),
                strings.quotas.windows[limit.window],
              )}
              <Meter used={limit.usage.observed_value} limit={limit.limit} label={texts.quotaLabel} />
            </>
          )}
        </>
      ),
    },
    { label: texts.tokens, value: totals && (totals.input_tokens + totals.output_tokens).toLocaleString() },
    counted(strings.queue.turns, perMinute.data?.total, 'traces', perMinute.data?.range),
    counted(texts.approvals, approvals, 'inbox'),
    counted(texts.attention, attention, 'sessions', { attention: 'true' }),
    counted(texts.exceptions, exceptions, 'inbox'),
    {
      label: texts.oldest,
      value: oldest === undefined ? undefined : oldest < 1 ? texts.nothing : elapsedText(oldest),
      action: Boolean(oldest && oldest >= 1) && <OpenButton label={texts.oldest} to={`/p/${projectId}/queue`} />,
    },
    counted(
      texts.dead,
      status && dead.reduce((sum, queue) => sum + queue.dead, 0),
      dead.length === 1 ? `queue/${dead[0].name}` : 'queue',
      dead.length === 1 ? { state: 'dead' } : undefined,
    ),
  ]
}

/** A link to the records of a figure. */
function OpenButton({ label, to, search }: { label: string; to: string; search?: Record<string, string> }) {
  return (
    <Button
      component={Link}
      to={to}
      search={search as never}
      size="compact-xs"
      variant="default"
      aria-label={`${strings.open}: ${label}`}
    >
      {strings.open}
    </Button>
  )
}

/** What happens in a project, and what needs attention. */
export function Overview() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const projects = useProjects()
  const system = useQuery({
    queryKey: ['system', 'status'],
    queryFn: async ({ signal }) => getSystemStatus(api, {}, { signal }),
    enabled: isAllowed(getSystemStatus) === true,
    refetchInterval: every(POLL_MS),
  })
  const turns = useQuery({
    queryKey: ['overview', 'turns', projectId],
    queryFn: async ({ signal }) =>
      (await listGenerations(api, { project_id: projectId, limit: SAMPLE }, { signal }).page()).data,
    refetchInterval: every(POLL_MS),
  })
  const figures = useFigures(projectId, system.data)
  const isPaused = projects.data?.data.find(({ id }) => id === projectId)?.paused_at
  return (
    <Page
      title={strings.nav.overview}
      intro={texts.intro}
      actions={!isPaused && isAllowed(pauseProject) && <PauseButton projectId={projectId} />}
    >
      {system.data && <FailingChecks checks={system.data.checks} />}
      <Figures figures={figures} />
      <Suspense fallback={<Loading />}>
        <TurnCharts />
      </Suspense>
      <Loaded query={turns} rows={3} operation={listGenerations}>
        {rows =>
          rows.length === 0 ? (
            <Notice
              icon={<IconPlayerPlay />}
              title={texts.noTurns}
              color="indigo"
              action={
                isAllowed(createAgentGeneration) && (
                  <Button component={Link} to={`/p/${projectId}/playground`}>
                    {strings.agents.try}
                  </Button>
                )
              }
            >
              {texts.noTurnsText}
            </Notice>
          ) : (
            <Turns rows={rows} />
          )
        }
      </Loaded>
    </Page>
  )
}

/** Returns the times between which the latest turns started: the first is left out where turns before it may be as old. */
function rangeOf(rows: GenerationListed[]): { from?: string; to: string } {
  const [newest, oldest] = [rows[0].created_at, rows[rows.length - 1].created_at]
  return {
    ...(rows.length === SAMPLE ? { from: new Date(Date.parse(oldest) + 1).toISOString() } : {}),
    to: newest,
  }
}

/** Failures of turns by cause, each with a link to the turns that it counts, and the latest turns. */
function Turns({ rows }: { rows: GenerationListed[] }) {
  const projectId = useProjectId()
  const range = rangeOf(rows)
  const counted = rows.filter(({ status, created_at }) => status === 'failed' && created_at >= (range.from ?? ''))
  const causes = Object.entries(Object.groupBy(counted, ({ error }) => error?.code ?? '')).map(([code, failed]) => ({
    code,
    count: failed?.length ?? 0,
  }))
  return (
    <>
      <Card withBorder padding="lg" radius="lg">
        <Title order={2} size="h4" mb="sm">
          {texts.failures}
        </Title>
        {causes.length === 0 ? (
          <Text c="dimmed">{texts.noFailures}</Text>
        ) : (
          <Stack gap={6}>
            {causes
              .toSorted((one, other) => other.count - one.count)
              .map(({ code, count }) => (
                <Group key={code} gap="sm">
                  <Badge variant="default">{count}</Badge>
                  {code === '' ? (
                    <Text size="sm">{texts.erasedCause}</Text>
                  ) : (
                    <Anchor
                      component={Link}
                      to={`/p/${projectId}/traces`}
                      search={{ status: 'failed', error: code, ...range } as never}
                      size="sm"
                      className="mono"
                    >
                      {visible(code)}
                    </Anchor>
                  )}
                </Group>
              ))}
          </Stack>
        )}
      </Card>
      <Card withBorder padding="lg" radius="lg">
        <Title order={2} size="h4" mb="sm">
          {texts.recent}
        </Title>
        <Table className="rows" aria-label={texts.recent} verticalSpacing="xs">
          <Table.Tbody>
            {rows.slice(0, SHOWN).map(({ id, status, created_at, usage }) => (
              <Table.Tr key={id}>
                <Table.Td>
                  <Anchor component={Link} to={`/p/${projectId}/traces/${id}`} size="sm" className="mono">
                    {id}
                  </Anchor>
                </Table.Td>
                <Table.Td>
                  <StatusBadge status={status} />
                </Table.Td>
                <Table.Td>{costText(usage?.cost_usd)}</Table.Td>
                <Table.Td>
                  <When at={created_at} />
                </Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      </Card>
    </>
  )
}
