import { Card, Group, SimpleGrid, Text } from '@mantine/core'
import type { ReactNode } from 'react'

export type Figure = {
  label: string
  /** Undefined while it is not known: then the figure is left out. */
  value: ReactNode
  /** Shown below the value. */
  note?: ReactNode
  action?: ReactNode
}

/** Numbers at the top of a view. */
export function Figures({ figures }: { figures: Figure[] }) {
  const known = figures.filter(({ value }) => value !== undefined)
  return (
    <SimpleGrid cols={{ base: 2, md: known.length > 4 ? 3 : Math.max(1, known.length) }}>
      {known.map(({ label, value, note, action }) => (
        <Card key={label} withBorder padding="md" radius="lg">
          <Text size="sm" c="dimmed">
            {label}
          </Text>
          <Group gap="sm" justify="space-between">
            <Text size="xl" fw={700} component="div" style={{ fontVariantNumeric: 'tabular-nums' }}>
              {value}
            </Text>
            {action}
          </Group>
          {note && (
            <Text size="sm" c="dimmed" component="div">
              {note}
            </Text>
          )}
        </Card>
      ))}
    </SimpleGrid>
  )
}
