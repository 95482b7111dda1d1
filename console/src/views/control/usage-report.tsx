import { Badge, Button, Group, Progress, SegmentedControl, Select, Stack, Table, Text } from '@mantine/core'
import type { UsageAggregate, UsageTimeseries } from '@muster/client'
import {
  aggregateUsage,
  exportUsageEvents,
  getUsageTimeseries,
  putProjectPrices,
  readUsageReceipt,
} from '@muster/client/operations'
import { IconChartBar, IconDownload, IconReceipt } from '@tabler/icons-react'
import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { Suspense } from 'react'
import { api, every } from '#api.ts'
import { FormButton, useAction } from '#components/actions.tsx'
import type { ChartSeries } from '#components/chart.tsx'
import { daysOf } from '#components/days.ts'
import { EndUserLink } from '#components/end-user-link.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import { Figures } from '#components/figures.tsx'
import { useFilters } from '#components/filters.ts'
import { TableHead } from '#components/list.tsx'
import { onDemand } from '#components/on-demand.tsx'
import { Section } from '#components/record.tsx'
import { saveAs } from '#components/save.ts'
import { FailureAlert, Loaded, Loading, Notice } from '#components/states.tsx'
import { costText, visible } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { PriceForm } from './prices.tsx'
import { Receipt } from './receipt.tsx'

const Chart = onDemand(async () => (await import('#components/chart.tsx')).default)

const POLL_MS = 60_000
/** Groups with a separate color; the rest is one series. */
const SHOWN_GROUPS = 5
const texts = strings.usage

const DIMENSIONS = [
  'agent',
  'model',
  'served_model',
  'service_tier',
  'actor',
  'session',
  'ai_provider',
  'source',
  'meter_type',
] as const
type Dimension = (typeof DIMENSIONS)[number]
type Totals = Pick<UsageAggregate['totals'], 'cost_usd' | 'input_tokens' | 'output_tokens' | 'event_count'>

const MEASURES = {
  cost: { of: ({ cost_usd }: Totals) => cost_usd ?? 0, format: (value: number) => costText(value) },
  tokens: {
    of: ({ input_tokens, output_tokens }: Totals) => input_tokens + output_tokens,
    format: (value: number) => value.toLocaleString(undefined, { notation: 'compact' }),
  },
  events: {
    of: ({ event_count }: Totals) => event_count,
    format: (value: number) => value.toLocaleString(undefined, { notation: 'compact' }),
  },
}

/** The largest groups as series of the days, and the rest as one. */
function seriesOf(
  points: UsageTimeseries['points'],
  days: number[],
  largest: (string | null)[],
  measure: (totals: Totals) => number,
  nameOf: (key: string | null) => string,
): ChartSeries[] {
  const byDay = new Map(points.map(point => [Date.parse(point.start) / 1000, point]))
  const shown = largest.slice(0, SHOWN_GROUPS)
  const series = shown.map(key => ({
    name: nameOf(key),
    values: days.map(day => {
      const group = byDay.get(day)?.groups.find(each => each.key === key)
      return group ? measure(group) : 0
    }),
  }))
  if (largest.length <= SHOWN_GROUPS) return series
  const rest = days.map((day, index) => {
    const point = byDay.get(day)
    const drawn = series.reduce((sum, { values }) => sum + values[index], 0)
    return point ? Math.max(0, measure(point.totals) - drawn) : 0
  })
  return [...series, { name: texts.others, values: rest }]
}

/** Usage of a period: by day as a chart, by agent, model or end user as a table, and what has no price. */
export function UsageReport() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { filters, setFilters } = useFilters()
  const count = [7, 30, 90].includes(Number(filters.days)) ? Number(filters.days) : 30
  const by: Dimension = DIMENSIONS.find(each => each === filters.by) ?? 'agent'
  const measured = filters.measure === 'tokens' || filters.measure === 'events' ? filters.measure : 'cost'
  const measure = MEASURES[measured]
  const report = useQuery({
    queryKey: ['usage', projectId, count, by],
    queryFn: async ({ signal }) => {
      const days = daysOf(count)
      const range = { project_id: projectId, from: new Date(days[0] * 1000).toISOString() }
      const to = new Date().toISOString()
      const [series, groups, models] = await Promise.all([
        getUsageTimeseries(api, { ...range, to, interval: 'day', group_by: by }, { signal }),
        aggregateUsage(api, { ...range, group_by: by, limit: '100' }, { signal }),
        aggregateUsage(api, { ...range, group_by: 'model', meter_type: ['llm_tokens'], limit: '100' }, { signal }),
      ])
      return {
        days,
        points: series.points,
        totals: groups.totals,
        groups: groups.groups.data,
        models: models.groups.data,
      }
    },
    placeholderData: keepPreviousData,
    refetchInterval: every(POLL_MS),
  })
  const names = new Map(report.data?.groups.map(group => [group.key, group.agent_name ?? group.actor_name]))
  const nameOf = (key: string | null) => (key === null ? texts.without(texts.dimensions[by]) : (names.get(key) ?? key))
  const exported = useAction({
    run: async () => {
      const from = new Date(daysOf(count)[0] * 1000).toISOString()
      saveAs([await (await exportUsageEvents(api, { project_id: projectId, from })).bytes()], texts.file)
    },
  })
  return (
    <Stack gap="lg">
      <Group gap="sm">
        <SegmentedControl
          aria-label={texts.period}
          value={String(count)}
          onChange={days => setFilters({ days: days === '30' ? undefined : days })}
          data={[7, 30, 90].map(days => ({ value: String(days), label: texts.days(days) }))}
        />
        <SegmentedControl
          aria-label={texts.measure}
          value={measured}
          onChange={next => setFilters({ measure: next === 'cost' ? undefined : next })}
          data={Object.entries(texts.measures).map(([value, label]) => ({ value, label }))}
        />
        <Select
          aria-label={texts.by}
          value={by}
          allowDeselect={false}
          onChange={next => setFilters({ by: next === 'agent' ? undefined : (next ?? undefined) })}
          data={DIMENSIONS.map(value => ({ value, label: `${texts.by} ${texts.dimensions[value]}` }))}
          w={{ base: '100%', xs: 200 }}
        />
        <Group gap="sm" ml={{ sm: 'auto' }}>
          {isAllowed(readUsageReceipt) && (
            <FormButton
              label={texts.receipt}
              variant="default"
              leftSection={<IconReceipt size={16} />}
              form={() => <Receipt projectId={projectId} />}
            />
          )}
          {isAllowed(exportUsageEvents) && (
            <Button
              variant="default"
              leftSection={<IconDownload size={16} />}
              loading={exported.isPending}
              onClick={() => exported.mutate()}
            >
              {texts.export}
            </Button>
          )}
        </Group>
      </Group>
      {exported.error && <FailureAlert error={exported.error} />}
      <Loaded query={report} operation={aggregateUsage} rows={6}>
        {({ days, points, totals, groups, models }) => {
          const unpriced = models.filter(({ components }) =>
            components.some(({ unpriced_quantity }) => unpriced_quantity > 0),
          )
          if (totals.event_count === 0)
            return (
              <Notice icon={<IconChartBar />} title={texts.empty} color="indigo">
                {texts.emptyText}
              </Notice>
            )
          const sorted = groups.toSorted((one, other) => measure.of(other) - measure.of(one))
          const keys = sorted.map(({ key }) => key)
          return (
            <>
              <Figures
                figures={[
                  {
                    label: texts.measures.cost,
                    value: costText(totals.cost_usd),
                    note:
                      totals.unpriced_tokens > 0 &&
                      strings.charts.unpriced(
                        totals.unpriced_tokens.toLocaleString(),
                        texts.share(totals.unpriced_share),
                      ),
                  },
                  { label: texts.input, value: totals.input_tokens.toLocaleString() },
                  { label: texts.output, value: totals.output_tokens.toLocaleString() },
                  { label: texts.measures.events, value: totals.event_count.toLocaleString() },
                ]}
              />
              <Section title={texts.byDay(texts.measures[measured])}>
                <Suspense fallback={<Loading />}>
                  <Chart
                    label={texts.byDay(texts.measures[measured])}
                    days={days}
                    series={seriesOf(points, days, keys, measure.of, nameOf)}
                    format={measure.format}
                  />
                </Suspense>
              </Section>
              {unpriced.length > 0 && <Unpriced models={unpriced} projectId={projectId} />}
              <Section title={texts.groups(texts.dimensions[by])}>
                <Groups groups={sorted} by={by} total={measure.of(totals)} measure={measure.of} nameOf={nameOf} />
              </Section>
              <Section title={texts.byComponent}>
                <Components components={totals.components} />
              </Section>
            </>
          )
        }}
      </Loaded>
    </Stack>
  )
}

type GroupRow = UsageAggregate['groups']['data'][number]

/** Kinds of the records by which usage is grouped. */
const KINDS: Partial<Record<Dimension, string>> = { agent: 'agent', actor: 'actor', session: 'session' }

/** The name of a group, as a link if it is a record. */
function GroupName({ group, by, name }: { group: GroupRow; by: Dimension; name: string }) {
  const projectId = useProjectId()
  const { key, actor_name = null, actor_external_id = null, agent_name } = group
  const kind = KINDS[by]
  if (key === null || !kind) return visible(name)
  if (kind === 'actor') return <EndUserLink entry={{ actor_id: key, actor_name, actor_external_id }} />
  return <EntityLink kind={kind} id={key} projectId={projectId} name={agent_name ?? undefined} />
}

function Groups({
  groups,
  by,
  total,
  measure,
  nameOf,
}: {
  groups: GroupRow[]
  by: Dimension
  total: number
  measure: (totals: Totals) => number
  nameOf: (key: string | null) => string
}) {
  const titles = [
    strings.name,
    texts.measures.events,
    texts.input,
    texts.output,
    texts.measures.cost,
    texts.unpricedTokens,
  ]
  return (
    <Table className="rows" verticalSpacing="xs" aria-label={texts.table}>
      <TableHead titles={titles} />
      <Table.Tbody>
        {groups.map(group => (
          <Table.Tr key={`${group.key} ${group.ai_provider_id}`}>
            <Table.Td w="40%">
              <GroupName group={group} by={by} name={nameOf(group.key)} />
              <Progress.Root size="sm" mt={4}>
                <Progress.Section
                  value={total > 0 ? (measure(group) / total) * 100 : 0}
                  aria-label={texts.shareOf(visible(nameOf(group.key)))}
                />
              </Progress.Root>
            </Table.Td>
            <Table.Td data-title={titles[1]}>{group.event_count.toLocaleString()}</Table.Td>
            <Table.Td data-title={titles[2]}>{group.input_tokens.toLocaleString()}</Table.Td>
            <Table.Td data-title={titles[3]}>{group.output_tokens.toLocaleString()}</Table.Td>
            <Table.Td data-title={titles[4]}>{costText(group.cost_usd)}</Table.Td>
            <Table.Td data-title={titles[5]}>{unpricedText(group.unpriced_tokens, group.unpriced_share)}</Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  )
}

/** A quantity without a price and its share; a dash for none. */
const unpricedText = (quantity: number, share: number): string =>
  quantity > 0 ? texts.unpricedOf(quantity.toLocaleString(), texts.share(share)) : strings.none

/** Quantity and cost of each component, the dearest first. */
function Components({ components }: { components: UsageAggregate['totals']['components'] }) {
  const titles = [texts.component, texts.quantity, texts.measures.cost, texts.unpriced]
  const sorted = components.toSorted((one, other) => (other.cost_usd ?? -1) - (one.cost_usd ?? -1))
  return (
    <Table className="rows" verticalSpacing="xs" aria-label={texts.byComponent}>
      <TableHead titles={titles} />
      <Table.Tbody>
        {sorted.map(({ component, unit, quantity, cost_usd, unpriced_quantity, unpriced_share }) => (
          <Table.Tr key={`${component} ${unit}`}>
            <Table.Td w="40%">{visible(component)}</Table.Td>
            <Table.Td data-title={titles[1]}>
              {quantity.toLocaleString()} {visible(unit)}
            </Table.Td>
            <Table.Td data-title={titles[2]}>
              {cost_usd === null && unpriced_quantity === 0 ? strings.none : costText(cost_usd)}
            </Table.Td>
            <Table.Td data-title={titles[3]}>{unpricedText(unpriced_quantity, unpriced_share)}</Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  )
}

/** Models of which something has no price, with a form that adds it. */
function Unpriced({ models, projectId }: { models: GroupRow[]; projectId: string }) {
  const isAllowed = usePermissions(projectId)
  return (
    <Section title={texts.unpriced}>
      <Text size="sm" c="dimmed">
        {texts.unpricedText}
      </Text>
      <Table className="rows" verticalSpacing="sm" aria-label={texts.unpriced}>
        <Table.Tbody>
          {models.map(({ key, ai_provider_id, components }) => {
            const missing = components.filter(({ unpriced_quantity }) => unpriced_quantity > 0)
            return (
              <Table.Tr key={`${key} ${ai_provider_id}`}>
                <Table.Td w="40%">
                  <span className="mono">{visible(key ?? strings.none)}</span>
                </Table.Td>
                <Table.Td>
                  <Group gap={6}>
                    {missing.map(({ component, unpriced_quantity, unpriced_share }) => (
                      <Badge key={component} variant="default" tt="none">
                        {visible(component)} {unpricedText(unpriced_quantity, unpriced_share)}
                      </Badge>
                    ))}
                  </Group>
                </Table.Td>
                <Table.Td>
                  {isAllowed(putProjectPrices) && missing[0] && (
                    <FormButton
                      label={strings.prices.create}
                      size="xs"
                      variant="default"
                      form={close => (
                        <PriceForm
                          start={{ model: key, component: missing[0].component, unit: missing[0].unit }}
                          onDone={close}
                        />
                      )}
                    />
                  )}
                </Table.Td>
              </Table.Tr>
            )
          })}
        </Table.Tbody>
      </Table>
    </Section>
  )
}
