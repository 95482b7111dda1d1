import { Badge, Button, Card, Group, Select, Stack, Table, Text } from '@mantine/core'
import type { Eval, EvalComparedItem, EvalRun } from '@muster/client'
import { compareEvalRuns, listEvals } from '@muster/client/operations'
import { IconArrowsLeftRight, IconChartBar } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { api } from '#api.ts'
import { useFilters } from '#components/filters.ts'
import { TableHead } from '#components/list.tsx'
import { Section } from '#components/record.tsx'
import { Loaded, Notice } from '#components/states.tsx'
import { visible } from '#components/text.tsx'
import { TextDifference } from '#components/text-difference.tsx'
import * as strings from '#strings.ts'
import { inputText } from './dataset.tsx'
import {
  aggregatesOf,
  deltaText,
  type Outcome,
  OutcomeBadge,
  outcomeOf,
  runName,
  Scores,
  useCompletedRuns,
} from './eval-run-parts.tsx'
import { percentText } from './evals.tsx'

const texts = strings.evals

/** Items with another outcome that are read, to be ordered. */
const CHANGED_MAX = 500
/** Items that are drawn at first, and with each request for more. */
const ITEMS = 20

/** Two runs next to each other. They are part of the address; without it, the two latest. */
export function Comparison({ evaluation: { id } }: { evaluation: Eval }) {
  const { filters, setFilters } = useFilters()
  const runs = useCompletedRuns(id)
  return (
    <Loaded query={runs} operation={listEvals}>
      {all => {
        const before = all.find(run => run.id === filters.before) ?? all[1]
        const after = all.find(run => run.id === filters.after) ?? all[0]
        if (!before || !after)
          return (
            <Notice icon={<IconChartBar />} title={texts.chooseTwo}>
              {texts.chooseTwoText}
            </Notice>
          )
        const choices = all.map(run => ({ value: run.id, label: runName(run) }))
        return (
          <Stack gap="lg">
            <Group align="flex-end" gap="sm">
              <Select
                label={texts.before}
                data={choices}
                value={before.id}
                allowDeselect={false}
                onChange={value => setFilters({ before: value ?? undefined, after: after.id })}
                w={{ base: '100%', xs: 280 }}
              />
              <Select
                label={texts.after}
                data={choices}
                value={after.id}
                allowDeselect={false}
                onChange={value => setFilters({ before: before.id, after: value ?? undefined })}
                w={{ base: '100%', xs: 280 }}
              />
              <Button
                variant="default"
                leftSection={<IconArrowsLeftRight size={16} />}
                onClick={() => setFilters({ before: after.id, after: before.id })}
              >
                {texts.swap}
              </Button>
            </Group>
            <Figures before={before} after={after} />
            <Items key={`${before.id} ${after.id}`} before={before} after={after} />
          </Stack>
        )
      }}
    </Loaded>
  )
}

/** The figures of both runs, and how they differ. */
function Figures({ before, after }: { before: EvalRun; after: EvalRun }) {
  const [left, right] = [aggregatesOf(before), aggregatesOf(after)]
  const names = [...new Set([...Object.keys(left?.scorers ?? {}), ...Object.keys(right?.scorers ?? {})])]
  const rows: [name: string, before: number | null | undefined, after: number | null | undefined][] = [
    [texts.passRate, left?.pass_rate, right?.pass_rate],
    ...names.map((name): (typeof rows)[number] => [
      `${visible(name)} (${texts.mean})`,
      left?.scorers[name]?.mean,
      right?.scorers[name]?.mean,
    ]),
  ]
  const { baseline } = right ?? {}
  const shown = (part: number | null | undefined) => (part == null ? strings.none : percentText(part))
  return (
    <Card withBorder padding={0} radius="lg">
      <Table className="rows" verticalSpacing="sm" horizontalSpacing="md" aria-label={texts.compare}>
        <TableHead titles={['', texts.before, texts.after, texts.delta]} />
        <Table.Tbody>
          {rows.map(([name, one, other]) => (
            <Table.Tr key={name}>
              <Table.Td>
                <Text fw={600}>{name}</Text>
              </Table.Td>
              <Table.Td data-title={texts.before}>{shown(one)}</Table.Td>
              <Table.Td data-title={texts.after}>{shown(other)}</Table.Td>
              <Table.Td data-title={texts.delta}>
                {one == null || other == null ? strings.none : deltaText(other - one)}
              </Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
      {baseline?.run_id === before.id && baseline.p_value !== null && (
        <Text size="sm" c="dimmed" p="md">
          {texts.chance}: {percentText(baseline.p_value)}
        </Text>
      )}
    </Card>
  )
}

type Change = 'regressed' | 'improved' | 'changed' | 'equal'
const ORDER: Change[] = ['regressed', 'improved', 'changed', 'equal']

/** Returns how the outcome of an item differs between two runs. */
function changeOf({ results: [before, after] }: EvalComparedItem): Change {
  const [one, other]: Outcome[] = [outcomeOf(before), outcomeOf(after)]
  if (one === other) return 'equal'
  if (one === 'passed' && other !== 'missing') return 'regressed'
  return other === 'passed' && one !== 'missing' ? 'improved' : 'changed'
}

function Items({ before, after }: { before: EvalRun; after: EvalRun }) {
  const eval_id = before.eval_id
  const pair = `${before.id},${after.id}`
  const [shown, setShown] = useState(ITEMS)
  const [equal, setEqual] = useState(0)
  const changed = useQuery({
    queryKey: ['eval', eval_id, 'compare', pair],
    queryFn: async ({ signal }) => {
      const list = compareEvalRuns(api, { eval_id, runs: pair, changed: true }, { signal })
      const items = (await list.all({ max: CHANGED_MAX })).map(item => ({ item, change: changeOf(item) }))
      return {
        items: items.toSorted((one, other) => ORDER.indexOf(one.change) - ORDER.indexOf(other.change)),
        total: list.total ?? items.length,
      }
    },
  })
  const others = useQuery({
    queryKey: ['eval', eval_id, 'compare', pair, 'equal', equal],
    queryFn: async ({ signal }) => {
      const list = compareEvalRuns(api, { eval_id, runs: pair, changed: false }, { signal })
      return { items: await list.all({ max: equal }), total: list.total ?? 0 }
    },
    enabled: equal > 0,
    placeholderData: previous => previous,
  })
  return (
    <Loaded query={changed} operation={compareEvalRuns}>
      {({ items, total }) => {
        const count = (wanted: Change) => items.filter(({ change }) => change === wanted).length
        return (
          <Stack gap="md">
            <Text fw={600} role="status">
              {items.length === 0 ? texts.noChange : texts.counts(count('regressed'), count('improved'))}
            </Text>
            {total > items.length && (
              <Text size="sm" c="dimmed">
                {texts.cut(items.length, total)}
              </Text>
            )}
            {items.slice(0, shown).map(({ item, change }, index) => (
              <ComparedItem key={item.dataset_item_id ?? index} item={item} change={change} />
            ))}
            {items.length > shown && (
              <Group>
                <Button variant="default" onClick={() => setShown(shown + ITEMS)}>
                  {strings.more}
                </Button>
              </Group>
            )}
            {others.data && (
              <Text fw={600} component="h2" size="md">
                {texts.equal}
              </Text>
            )}
            {others.data?.items.map((item, index) => (
              <ComparedItem key={item.dataset_item_id ?? index} item={item} change="equal" />
            ))}
            {(!others.data || others.data.items.length < others.data.total) && (
              <Group>
                <Button variant="default" loading={others.isFetching} onClick={() => setEqual(equal + ITEMS)}>
                  {equal === 0 ? texts.equal : strings.more}
                </Button>
              </Group>
            )}
          </Stack>
        )
      }}
    </Loaded>
  )
}

const CHANGE_COLORS: Record<Change, string> = { regressed: 'red', improved: 'teal', changed: 'orange', equal: 'gray' }

function ComparedItem({ item, change }: { item: EvalComparedItem; change: Change }) {
  const [before, after] = item.results
  const text = visible(inputText(item.input))
  const labels: [string, string] = [texts.before, texts.after]
  return (
    <Section
      title={text.length > 120 ? `${text.slice(0, 120)}…` : text}
      actions={
        <>
          {change !== 'equal' && (
            <Badge variant="dot" color={CHANGE_COLORS[change]}>
              {texts[change]}
            </Badge>
          )}
          <OutcomeBadge outcome={outcomeOf(before)} />
          <Text size="sm" aria-hidden>
            →
          </Text>
          <OutcomeBadge outcome={outcomeOf(after)} />
        </>
      }
    >
      {text.length > 120 && (
        <Text size="sm" className="wrap" lineClamp={8}>
          {text}
        </Text>
      )}
      {item.expected_output !== null && (
        <Stack gap={2}>
          <Text size="sm" c="dimmed">
            {texts.expected}
          </Text>
          <Text size="sm" className="wrap" lineClamp={8}>
            {visible(item.expected_output)}
          </Text>
        </Stack>
      )}
      <TextDifference
        before={before?.output ?? before?.error?.message ?? null}
        after={after?.output ?? after?.error?.message ?? null}
        labels={labels}
      />
      <Scores
        results={[
          { label: labels[0], scores: before?.scores ?? [] },
          { label: labels[1], scores: after?.scores ?? [] },
        ]}
      />
    </Section>
  )
}
