import { Card, Group, SimpleGrid, Stack, Tabs, Text, Title } from '@mantine/core'
import type { ReactNode } from 'react'
import * as strings from '#strings.ts'
import { useFilters } from './filters.ts'
import { CopyText } from './text.tsx'
import { Value } from './value.tsx'

/** A card with a heading. */
export function Section({ title, actions, children }: { title: string; actions?: ReactNode; children: ReactNode }) {
  return (
    <Card withBorder padding="lg" radius="lg" component="section" aria-label={title}>
      <Stack gap="md">
        <Group justify="space-between" gap="sm">
          <Title order={2} size="h5">
            {title}
          </Title>
          {actions && <Group gap="sm">{actions}</Group>}
        </Group>
        {children}
      </Stack>
    </Card>
  )
}

/** A card with a value or children; nothing without either. */
export function Part({ title, value, children }: { title: string; value?: unknown; children?: ReactNode }) {
  if (value === null || (value === undefined && !children)) return null
  return <Section title={title}>{children ?? <Value value={value} label={title} />}</Section>
}

/** Fields of a record; those without a value are left out. */
export function Facts({ facts }: { facts: [label: string, value: ReactNode][] }) {
  const shown = facts.filter(([, value]) => value !== undefined && value !== null && value !== false && value !== '')
  return (
    <SimpleGrid cols={{ base: 2, sm: 4 }} spacing="lg">
      {shown.map(([label, value]) => (
        <Stack gap={2} key={label}>
          <Text size="sm" c="dimmed">
            {label}
          </Text>
          <Text component="div">{value}</Text>
        </Stack>
      ))}
    </SimpleGrid>
  )
}

export type Tab = { value: string; title: string; content: () => ReactNode }

/** Tabs of a view; the open one is part of the address. Each begins without the filters of the one before. */
export function AddressTabs({ tabs }: { tabs: Tab[] }) {
  const { filters, setFilters } = useFilters()
  const open = tabs.some(({ value }) => value === filters.tab) ? filters.tab : tabs[0].value
  return (
    <Tabs
      value={open}
      onChange={next => {
        const cleared = Object.fromEntries(Object.keys(filters).map(name => [name, undefined]))
        setFilters({ ...cleared, tab: next === tabs[0].value ? undefined : (next ?? undefined) })
      }}
      keepMounted={false}
    >
      <Tabs.List mb="lg">
        {tabs.map(({ value, title }) => (
          <Tabs.Tab value={value} key={value}>
            {title}
          </Tabs.Tab>
        ))}
      </Tabs.List>
      {tabs.map(({ value, content }) => (
        <Tabs.Panel value={value} key={value}>
          {value === open && content()}
        </Tabs.Panel>
      ))}
    </Tabs>
  )
}

/** The ID of a record, to be copied. */
export function IdLine({ id }: { id: string }) {
  return (
    <Text size="sm" c="dimmed" component="div">
      {strings.agents.id} <span className="mono">{id}</span> <CopyText text={id} />
    </Text>
  )
}

/** Values of any size with their labels; empty ones are left out. */
export function LabelledValues({ values }: { values: readonly (readonly [label: string, value: unknown])[] }) {
  const isEmpty = (value: unknown) =>
    value === null || value === undefined || (typeof value === 'object' && Object.keys(value).length === 0)
  return values
    .filter(([, value]) => !isEmpty(value))
    .map(([label, value]) => (
      <Stack gap={4} key={label}>
        <Text size="sm" c="dimmed">
          {label}
        </Text>
        <Value value={value} label={label} />
      </Stack>
    ))
}
